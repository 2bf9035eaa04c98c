"""PURE: the life of one job. `plan(job, observed, now)` says what to write and what to do.

Nothing here knows a clock, a network or a Kubernetes client: manifests are plain JSON values, time
comes in as `now` (seconds since the epoch), and every decision is a value.
"""
