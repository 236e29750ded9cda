"""The operator: turns an InferenceService into model pods and says why it did what it did."""
