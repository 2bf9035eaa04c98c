"""`drumline simulate`: a trace of jobs on a virtual clock, compared across policies."""
