"""What people type: `drumline report JOB`, and as a plugin `kubectl drumline report JOB`.

`program` parses the arguments and runs one command; each command has a package: `run`, `report`,
`decide`, `replay`, `simulate`, `plan`. `jobs` has those for a job that is there. `manifests` reads
objects from files, `formatting` writes figures and times. What comes from a job is tenant input:
`contract.plain` takes out what a terminal would obey, `markup` escapes what a browser would.

Nothing here imports Kopf. Only `run` and `jobs` write to the cluster, with the rights of whoever is
at the terminal.
"""
