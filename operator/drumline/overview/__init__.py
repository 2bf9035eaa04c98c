"""Rows of jobs, queues, nodes, use and shares for people and programs. Pure.

Objects of the API server go in (`objects`: only the fields that are read), and rows come out
(`rows`: the documented output of the command line). The same functions serve every display of a
cluster, so that all agree. They do no I/O and read no clock. They import neither pydantic nor the
scheduler, whose import takes longer than the rows of a thousand jobs.
"""
