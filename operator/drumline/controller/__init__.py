"""The loops of the operator and their caches, sorted by object.

`jobs`, `queues`, `pools`, `nodes`, `workloads` and `agents` each handle one kind of object: its
cache, its conversion to a value of the scheduler, and the writes of its status. `state` joins them.
`scheduler` and `reconciler` are the two loops, and `usage` reports.
"""
