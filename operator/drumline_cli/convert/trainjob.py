"""Kubeflow's TrainJob (trainer.kubeflow.org/v1alpha1): best effort, as its runtime is elsewhere.

https://github.com/kubeflow/trainer/blob/master/pkg/apis/trainer/v1alpha1/trainjob_types.go
"""

from __future__ import annotations

from drumline_cli.convert.assembly import finished, head_of
from drumline_cli.convert.fields import Fields
from drumline_cli.convert.model import Conversion, ConversionError, Json, Wanted
from drumline_cli.convert.pods import GPU, command_of, resources_of
from drumline_cli.convert.volumes import env_of


def convert_trainjob(document: Fields, wanted: Wanted) -> Conversion:
    """Return the TrainJob as a TrainingJob. What its runtime adds is not known.

    Raises:
        ConversionError: it cannot be one.
    """
    head = head_of(document)
    fields = document.below("spec")
    trainer = fields.below("trainer")
    gpus, resources = resources_of(trainer.below("resourcesPerNode"))
    if gpus == 0:
        raise ConversionError(
            path=trainer.at("resourcesPerNode"),
            problem=f"needs {GPU} in its limits, because every pod of a TrainingJob has a GPU",
        )
    image = wanted.image or trainer.text("image", to="spec.template.image")
    trainer.raw("image")
    if image is None:
        raise ConversionError(
            path=trainer.at("image"), problem="the runtime defines it; set it with --image"
        )
    template: Json = {"image": image, **command_of(trainer, gpus=gpus)}
    env = env_of(trainer, to="spec.template")
    if env:
        template["env"] = env
    spec: Json = {**head.spec, "gpusPerNode": gpus, "template": template}
    if resources:
        spec["resources"] = resources
    nodes = trainer.number("numNodes", to="spec.nodes")
    spec["nodes"] = 1 if nodes is None else nodes
    trainer.leave_out("numProcPerNode", "a pod has one rank per GPU: set spec.gpusPerNode")
    seconds = fields.number("activeDeadlineSeconds", to="spec.activeDeadlineSeconds")
    if seconds is not None:
        spec["activeDeadlineSeconds"] = seconds
    if fields.flag("suspend", to="spec.suspend"):
        spec["suspend"] = True
    runtime = fields.below("runtimeRef")
    runtime.forget()
    fields.notes.check(
        runtime.path, "the job lacks the command, volumes and variables that the runtime adds"
    )
    fields.leave_out("initializer", "template.initContainers fetch data and weights")
    fields.leave_out("managedBy", "Drumline runs the TrainingJob")
    for name in ("runtimePatches", "podTemplateOverrides", "podSpecOverrides"):
        fields.leave_out(name, "copy its settings to spec and spec.template")
    return finished(document, head.metadata, spec, wanted=wanted)
