"""`drumline export-trace`: the jobs of a cluster as a trace for `drumline simulate`."""
