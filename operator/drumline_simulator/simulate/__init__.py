"""Simulate a trace of jobs on a virtual clock and compare policies: `drumline simulate`."""
