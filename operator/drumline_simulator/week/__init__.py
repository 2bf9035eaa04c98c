"""Simulate a week: one trace of seven days under Drumline and under its peers.

`setting` is the cluster and its conditions, `trace` its jobs, `sides` the schedulers. `study` runs
all sides, and `report` formats the results. See docs/simulated-week.md.
"""
