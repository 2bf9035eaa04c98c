"""What a simulation reads: the cluster file and the trace, in any of the supported formats."""
