"""Decide the next status and the next actions of one job. `planner` is the entry."""
