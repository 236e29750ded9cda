"""The runner on a GPU: rows, tokens and blocks live on the device, and the host only says what is next."""
