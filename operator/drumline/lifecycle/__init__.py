"""The life of one job. Pure: `plan.planner.plan_job` decides the next status and actions.

Nothing here reads a clock, uses the network or has a Kubernetes client. Manifests are plain JSON
values, time is the argument `now` (seconds since the epoch), and every decision is a value.

`model` has the facts, `incidents` the meaning and cost of failures, `transitions` the next
statuses, `manifests` the objects of a job, and `plan` the decisions.
"""
