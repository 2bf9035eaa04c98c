"""The `drumline` command, also called as `kubectl drumline`.

`program` parses the arguments and runs one command. Each command has a package: `run` submits a
job, `jobs` acts on one (logs, stop, resume), `overview` lists jobs, queues and nodes and says why
a job waits, `report` tells what a job did. `decide`, `replay` and `plan` ask the scheduler and the
planner without a cluster. `doctor` checks an installation, `convert` reads files of other systems.

Commands read with the rights of the person at the terminal. Only `run`, `jobs` and `check_nodes`
write. Nothing here imports Kopf. Text that comes from a job is untrusted: `drumline_contract.plain`
removes what a terminal would obey, `markup` escapes what a browser would run.

Start with `program`, then the `command` module of one package. `columns` and `formatting` write
tables, figures and times; `errors` has the one exception that becomes a message and an exit code.

Data: arguments -> `cluster_access` or `manifests` -> rows or a model -> text, JSON or HTML. With
`-o json` all figures are there; schemas are under docs/.
"""
