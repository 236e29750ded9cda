"""What the gateway costs, and what its choice of replicas saves."""
