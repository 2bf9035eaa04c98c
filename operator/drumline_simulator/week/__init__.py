"""The simulated week: one trace of seven days under Drumline and under its peers.

`setting` the cluster and what happens to it, `trace` its jobs, `sides` who runs them, `study` runs
them all, `report` what came of it. See docs/simulated-week.md.
"""
