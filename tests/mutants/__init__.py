"""Small faults put into the scheduler, one at a time, to see whether a test notices.

`make mutants`: a seeded sample over quota, placement and preemption. Every fault runs in a process
of its own, forked from one that has loaded everything but the scheduler, against the tests of the
scheduling room. What survives is listed with its line; docs/testing.md says why it may.
"""
