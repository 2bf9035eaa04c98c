"""Which status to write and which actions to take next for one job; `planner` is the entry."""
