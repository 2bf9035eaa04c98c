"""The operator: one process that turns TrainingJobs into running gangs.

`kube` is the Kubernetes client: informers, fenced writes, one decoder of objects. `lifecycle` is
pure and decides the next step of one job: its pods, restarts, claims and conditions. `controller`
is sorted by object: jobs, queues, pools, nodes, workloads and agents have a package each, `state`
joins them to one view of the cluster, and two loops act on it, `scheduler` and `reconciler`.
`app` wires all this with Kopf and leader election. `overview` makes the rows that `drumline list`,
the page and the notifier show. `telemetry` has metrics and logs.

Only `app` knows Kopf. Nothing here imports torch, the trainer or the agent: pods and operator
exchange the values of `drumline_contract`.

Start with `app.operator` (the process), then `app.leader` (what a leader runs), then
`controller.reconciler.reconciler` (one job) and `controller.scheduler.loop` (one cycle).

Data: events of the API server -> `kube.informer` -> `controller.state` -> a snapshot or a job ->
`drumline_scheduler.decide` or `lifecycle.plan` -> writes by `kube.writes`.
"""

__version__ = "0.1.0"
