"""Run two optional processes beside the operator, each with its own Deployment.

`archive` keeps jobs after their deletion: their objects, incidents and last log lines, in a bucket
or a volume. `drumline history` and `report` read them back. `notifications` sends messages about
jobs and budgets to Slack, mail and webhooks, once each, after a restart too.

Neither changes a job. Neither is needed for scheduling or recovery: the operator runs on when they
fail, and their rights are smaller than the operator's.

Start with `archive.archiver` and `archive.layout` (the names in the bucket), or with
`notifications.notifier` and `notifications.events` (which changes become a message).

Data: informers of `drumline.kube` -> documents or events -> a store or a channel. A record of what
was sent is in a ConfigMap, so that a new process continues.
"""
