"""Convert what all kinds share: metadata and queue, roles of equal pods, the finished job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from drumline_api.base import GROUP, VERSION
from drumline_api.load import ApiError, parse
from drumline_api.spec_rules import broken_name, broken_rules
from drumline_api.trainingjob import TrainingJobSpec
from drumline_cli.convert.fields import Fields
from drumline_cli.convert.model import Conversion, ConversionError, Json, Notes, Wanted
from drumline_cli.convert.pods import GPU, gpus_of, metadata_of, pod_half
from drumline_cli.convert.roles import role_name, role_of

KUEUE_QUEUE: Final = "kueue.x-k8s.io/queue-name"
_KUEUE_CLASS: Final = "kueue.x-k8s.io/priority-class"
# The API server sets these fields, so they are no content of a job.
_OF_THE_SERVER: Final = (
    "creationTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
)
_TOPOLOGY: Final = ("podset-required-topology", "podset-preferred-topology", "exclusive-topology")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRole:
    """Pods of one template in the input."""

    fields: Fields
    """Fields of the whole role, for its path."""
    template: Fields
    replicas: int
    name: str
    completes: bool = False
    """Whether the job ends when its pods have succeeded."""
    command: tuple[str, ...] = ()
    """Command of its pods if the template has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHead:
    """Metadata above the spec."""

    metadata: Json
    spec: Json
    """Queue and priority, as far as labels say them."""


def head_of(document: Fields) -> JobHead:
    """Metadata of the job, and what labels of Kueue say.

    Raises:
        ConversionError: it has no name that a TrainingJob can have.
    """
    # Phase 1: fields without a note, because every object has them.
    for name in ("apiVersion", "kind", "status"):
        document.raw(name)
    fields = document.below("metadata")
    for name in _OF_THE_SERVER:
        fields.raw(name)
    # A generated name has no random end yet. Its prefix is the best available name.
    generated = (fields.text("generateName") or "").rstrip("-.")
    name = fields.text("name", to="metadata.name") or generated
    if not name:
        raise ConversionError(path="metadata.name", problem="is required")
    refused = broken_name(name)
    if refused is not None:
        raise ConversionError(path="metadata.name", problem=str(refused))
    # Phase 2: metadata of the TrainingJob.
    metadata: Json = {"name": name}
    namespace = fields.text("namespace", to="metadata.namespace")
    if namespace:
        metadata["namespace"] = namespace
    # Phase 3: labels of Kueue, which carry the queue and the priority.
    spec: Json = {}
    labels = fields.below("labels")
    if labels.has(KUEUE_QUEUE):
        spec["queue"] = labels.text(KUEUE_QUEUE, to="spec.queue")
        fields.notes.check(
            labels.at(KUEUE_QUEUE), "a TrainingQueue is cluster-scoped, a LocalQueue was namespaced"
        )
    if labels.has(_KUEUE_CLASS):
        spec["priorityClassName"] = labels.text(_KUEUE_CLASS, to="spec.priorityClassName")
        fields.notes.check(
            labels.at(_KUEUE_CLASS), "it was a WorkloadPriorityClass; create a PriorityClass"
        )
    metadata.update(metadata_of(fields, to="metadata"))
    return JobHead(metadata=metadata, spec=spec)


def job_of_roles(
    document: Fields,
    roles: Sequence[PodRole],
    *,
    head: JobHead,
    spec: Json,
    wanted: Wanted,
    container_name: str | None = None,
) -> Conversion:
    """Return the job of the role that trains.

    Roles with the same number of GPUs per pod become further pods of it. The others become roles of
    the job. In a job with roles, the kubelet starts all commands without an agent.

    Args:
        document: the object to convert.
        roles: its groups of Pods.
        head: name, namespace and labels.
        spec: fields that are known already.
        wanted: choices from the command line.
        container_name: container that trains. None: the only one.

    Raises:
        ConversionError: no role has a GPU, or the result is not a valid TrainingJob.
    """
    notes = document.notes
    if not roles or not any(gpus_of(role.template) * role.replicas for role in roles):
        where = roles[0].template.path if roles else "spec"
        raise ConversionError(
            path=where,
            problem=f"no container has {GPU} in its limits; the ranks of a TrainingJob need GPUs",
        )
    # Pods equal to those of the main role become further nodes. All others become roles.
    main = _main(roles)
    beside = [role for role in roles if _is_unlike(role, main)]
    half = pod_half(main.template, container_name=container_name, supervised=not beside)
    nodes = 0
    for role in roles:
        if role not in beside:
            nodes += role.replicas if role is main else _joining(role, main, notes)
    for path in _topology_paths(main.template):
        notes.check(path, "set a level of the GpuPool in spec.topology")
    template = dict(half.template)
    if main.command:
        template.setdefault("command", list(main.command))
    volumes = [*template.get("volumes", []), *spec.pop("volumes", [])]
    shared = spec.pop("volumeMounts", [])  # of all pods of the job
    mounts = [*template.get("volumeMounts", []), *shared]
    if volumes:
        template.update(volumes=volumes, volumeMounts=mounts)
    whole = {
        **head.spec,
        "nodes": nodes,
        "gpusPerNode": half.gpus,
        **half.spec,
        **spec,
        "template": template,
    }
    if beside:
        whole["roles"] = _roles(beside, template, notes, container_name=container_name)
        for role in whole["roles"] if shared else ():
            role["volumeMounts"] = [*role.get("volumeMounts", []), *shared]
        notes.check(
            main.fields.path,
            "pods of roles find the other pods if the kubelet starts the commands, so the whole"
            " gang restarts after a failure; with template.launch only the ranks restart",
        )
    return finished(document, head.metadata, whole, wanted=wanted)


def _main(roles: Sequence[PodRole]) -> PodRole:
    """Return the role that trains: the role with most GPUs that does not end the job."""
    # Without training roles any role with GPUs is acceptable.
    training = [role for role in roles if not role.completes and gpus_of(role.template)]
    return max(training or roles, key=lambda role: gpus_of(role.template) * role.replicas)


def _is_unlike(role: PodRole, main: PodRole) -> bool:
    # A launcher that completes the job must stay apart, even if it has GPUs.
    decides = role.completes and not main.completes
    return role is not main and (decides or gpus_of(role.template) != gpus_of(main.template))


def _roles(
    roles: Sequence[PodRole], template: Json, notes: Notes, *, container_name: str | None
) -> list[Json]:
    made: list[Json] = []
    for role in roles:
        name = role_name(role.name, taken=[each["name"] for each in made])
        to = f"spec.roles[{len(made)}]"
        own, gpus = role_of(role.template, to=to, template=template, container_name=container_name)
        notes.carried(role.fields.path, f"{to}, the role {name}")
        counts = {"nodes": role.replicas} if role.replicas != 1 else {}
        devices = {"gpusPerNode": gpus} if gpus else {}
        ends = {"completesJob": True} if role.completes else {}
        made.append({"name": name, **counts, **devices, **ends, **own})
    # One node is the default of a role, so the field is left out.
    return made


def finished(document: Fields, metadata: Json, spec: Json, *, wanted: Wanted) -> Conversion:
    """Check the job against the API's models and rules. Return the conversion.

    The notes list all fields that no converter has read.

    Args:
        document: the object to convert.
        metadata: metadata of the job.
        spec: spec of the job.
        wanted: choices from the command line.

    Raises:
        ConversionError: the queue is missing, or the result is not a valid TrainingJob.
    """
    given = spec.pop("queue", None)
    # The command line wins, because the queue may have another name in this cluster.
    queue = wanted.queue or given
    if queue is None:
        raise ConversionError(path="spec", problem="it names no queue; give --queue")
    # These classes are reserved for the components of the cluster.
    if str(spec.get("priorityClassName", "")).startswith("system-"):
        refused = spec.pop("priorityClassName")
        document.notes.left_out(
            "priorityClassName",
            f"{refused}: classes that start with system- are reserved for the cluster's own pods",
        )
    whole = {"queue": queue, **spec}
    # The models of the API check types and bounds, as the server will.
    try:
        parsed = parse(TrainingJobSpec, whole, at="spec")
    except ApiError as error:
        raise _not_ours(error) from None
    # Rules in CEL are checked too, so a converted job can be applied.
    for broken in broken_rules(parsed):
        raise _not_ours(broken)
    job: Json = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TrainingJob",
        "metadata": metadata,
        "spec": whole,
    }
    # Fields that no converter has read are reported as left out.
    document.leave_out_rest()
    return Conversion(job=job, notes=tuple(document.notes.made))


def _not_ours(error: ApiError) -> ConversionError:
    return ConversionError(path="", problem=f"the TrainingJob would be invalid: {error}")


def _joining(role: PodRole, main: PodRole, notes: Notes) -> int:
    """Add a role's pods to the main role. Return their number, and note every difference."""
    mine, main_spec = role.template.raw("spec"), main.template.raw("spec")
    # Only the template of the main role survives, so each difference is reported.
    for path in _differences(mine, main_spec, role.template.at("spec")):
        notes.left_out(path, f"differs from {main.template.path}, which applies to all pods")
    notes.carried(role.fields.path, "added to spec.nodes, as further pods of the same template")
    role.template.forget()
    return role.replicas


def _differences(mine: object, main: object, path: str) -> Iterator[str]:
    """Yield the paths at which two values differ."""
    if isinstance(mine, dict) and isinstance(main, dict):
        ours, theirs = cast("Json", mine), cast("Json", main)
        for name in dict.fromkeys((*ours, *theirs)):
            yield from _differences(ours.get(name), theirs.get(name), f"{path}.{name}")
    elif isinstance(mine, list) and isinstance(main, list):
        some, more = cast("list[Any]", mine), cast("list[Any]", main)
        # Lists of plain values differ as a whole. Lists of objects are compared item by item.
        scalar = not any(isinstance(value, dict) for value in (*some, *more))
        if len(some) != len(more) or scalar:
            if some != more:
                yield path
            return
        for number, (value, other) in enumerate(zip(some, more, strict=True)):
            yield from _differences(value, other, f"{path}[{number}]")
    elif mine != main:
        yield path


def _topology_paths(template: Fields) -> list[str]:
    annotations = template.below("metadata").below("annotations")
    return [annotations.at(name) for name in annotations.names() if name.endswith(_TOPOLOGY)]
