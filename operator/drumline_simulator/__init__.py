"""A simulator of the scheduler on a virtual clock: from a cluster and a trace to their outcome.

The package is pure: it accesses no file, clock or network; `drumline_simulator.simulate.study` does. All
decisions are made by `drumline_scheduler.decide`, the operator's own code. See docs/simulation.md.
"""
