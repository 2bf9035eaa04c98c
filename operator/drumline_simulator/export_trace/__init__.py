"""Export the jobs of a cluster as a trace for `drumline simulate`: `drumline export-trace`."""
