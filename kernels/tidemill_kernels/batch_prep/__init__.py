"""Turning the rows of a step into flat tensors, on the device where rows, tokens and block tables live."""
