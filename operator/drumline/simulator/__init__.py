"""The scheduler on a virtual clock: a cluster and a trace of jobs go in, what became of them out.

The room is pure: it reads no file, no clock and no network; `drumline.cli.simulate.study` does.
What decides is `drumline.scheduling.decide` itself, the operator's own code. See
docs/simulation.md.
"""
