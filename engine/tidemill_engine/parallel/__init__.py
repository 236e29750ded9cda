"""Several processes that compute one model together: who they are, what they exchange, and how they end."""
