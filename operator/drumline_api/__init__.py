"""The custom resources of `drumline.dev/v1alpha1`: TrainingJob, TrainingQueue and GpuPool.

Each is a pydantic model. The models say which fields exist, which values are valid, and what the
defaults are. The CRDs under crds/ are generated from them (`tools.generate.crds`), so the API
server refuses what the models refuse. Condition types, reasons and money are here, too.

Nothing here does I/O, knows Kopf, or decides anything about a cluster. Packages that run hot do
not import pydantic: the scheduler and the lifecycle work on frozen dataclasses made from these
models.

Start with `trainingjob` (the spec and its rules), then `jobstatus` and `conditions`. Rules that
span several fields are in `spec_rules` and `role_rules`. `load` parses an object and returns
either a model or errors that name the field.

Data: a YAML file -> the API server (schema and CEL rules of the CRD) -> `load.parse` -> a model ->
`drumline.lifecycle` and `drumline_scheduler`.
"""
