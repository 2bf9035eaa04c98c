"""Read the input of a simulation: the cluster file and the trace, in any supported format."""
