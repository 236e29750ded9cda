"""Other engines and ours on the same workloads, in turn, on the same machine."""
