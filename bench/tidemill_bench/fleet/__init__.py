"""A fleet of replicas under an autoscaler, simulated: who scales how, and what it costs and misses."""
