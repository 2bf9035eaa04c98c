"""PURE: the life of one job. `plan.planner.plan_job` says what to write and what to do next.

Nothing here has a clock, a network or a Kubernetes client: manifests are plain JSON values, time
comes in as `now` (seconds since the epoch), and every decision is a value.

`model` holds the facts, `incidents` what failures mean and cost, `transitions` the next statuses,
`manifests` the objects of a job, `plan` the decisions.
"""
