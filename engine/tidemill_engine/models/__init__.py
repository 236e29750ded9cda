"""Model definitions in plain torch, and weights from the files that hold them."""
