"""What people and programs see of a cluster: rows of jobs, queues, nodes, use and shares. Pure.

Objects of the API server go in (`objects`: only the fields that are read), rows come out (`rows`:
the documented output of the command line). The same functions serve every place that shows a
cluster, so that all say the same. No I/O and no clock; nothing of pydantic and of the scheduler is
imported, whose start takes longer than the rows of a thousand jobs.
"""
