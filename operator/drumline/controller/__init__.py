"""The loops of the operator and what they know, sorted by object.

`jobs`, `queues`, `pools`, `nodes`, `workloads` and `agents` hold all about one object: what is
cached of it, how it becomes a value of the scheduler, what is written to its status. `state` joins
them. `scheduler` and `reconciler` are the two loops; `usage` reports.
"""
