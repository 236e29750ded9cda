"""Functions the engine calls on tensors: a folder per operator, a plain reference beside each kernel."""
