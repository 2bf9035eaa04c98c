"""A pod's spec as the pod half of a TrainingJob: template, resources, GPUs, where it may run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from drumline_api.base import TOKEN_SECRET_SUFFIX
from drumline_api.podtemplate import PLATFORM_KEYS
from drumline_cli.convert.fields import Fields
from drumline_cli.convert.model import ConversionError, Json
from drumline_cli.convert.volumes import (
    env_from,
    env_of,
    mounts_of,
    volumes_of,
    without_shared_memory,
)
from drumline_contract import starts_ranks

GPU: Final = "nvidia.com/gpu"
_TEMPLATE: Final = "spec.template"
# These keys belong to controllers of the source system. Copies would confuse them.
_PLATFORM: Final = re.compile(rf"{PLATFORM_KEYS}|^([^/]*[.])?kubeflow[.]org/")
# The node lifecycle controller sets these taints. Drumline handles failed nodes itself.
_NODE_STATE: Final = re.compile(r"^node(-role)?[.]kubernetes[.]io/")
# Every field has a reason, so that no field disappears silently.
_REASONS: Final = {
    "restartPolicy": "Drumline restarts processes and pods itself, within spec.recovery",
    "schedulerName": "Drumline places the pods itself",
    "nodeName": "Drumline places the pods itself; set spec.nodeAffinity to select a node",
    "priorityClassName": "spec.priorityClassName orders jobs; the pods use Drumline's priority"
    " class",
    "serviceAccountName": "pods have no token; the pool defines an identity:"
    " podProfile.serviceAccountName of the GpuPool",
    "serviceAccount": "pods have no token; the pool defines an identity",
    "automountServiceAccountToken": "no token is ever mounted",
    "hostNetwork": "templates cannot use the node's network; for fast networks see docs/pools.md",
    "hostIPC": "shared memory works without it, with the size of the memory limit",
    "hostPID": "templates cannot use the node's namespaces",
    "runtimeClassName": "the pool defines it: podProfile.runtimeClassName of the GpuPool",
    "subdomain": "pods find each other in /etc/hosts",
    "hostname": "pods are named NAME-INDEX",
    "dnsPolicy": "the cluster's setting applies",
    "topologySpreadConstraints": "set spec.topology to place the gang in the network",
    "resourceClaims": "set the number of GPUs in spec.gpusPerNode",
}
_CONTAINER_REASONS: Final = {
    "ports": "pods of a gang can reach each other on every port",
    "livenessProbe": "the agent detects ranks that end or hang (template.launch)",
    "readinessProbe": "no other object waits for it",
    "startupProbe": "spec.startDeadlineSeconds limits a start",
    "lifecycle": "set template.notice to notify the command of its end",
    "stdin": "no terminal is attached",
    "tty": "no terminal is attached",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodHalf:
    """Content of a pod template: fields of the spec, and of its template."""

    spec: Json
    template: Json
    gpus: int


def pod_half(
    pod_template: Fields, *, container_name: str | None = None, supervised: bool = True
) -> PodHalf:
    """Return the pod template as fields of a TrainingJob.

    Args:
        pod_template: metadata and spec.
        container_name: name of the container that trains; None, or not there: the one with GPUs.
        supervised: whether an agent is to start the command.

    Raises:
        ConversionError: there is no container, or it has no image.
    """
    # Phase 1: metadata, the training container, and its GPUs and resources.
    pod = pod_template.below("spec")
    template: Json = metadata_of(pod_template.below("metadata"), to=_TEMPLATE)
    container = training_container(pod, name=container_name)
    gpus, resources = resources_of(container.below("resources"))
    spec = _placement(pod)
    if resources:
        spec["resources"] = resources
    # Phase 2: image and command. Without an image there is nothing to run.
    image = container.text("image", to=f"{_TEMPLATE}.image")
    if image is None:
        raise ConversionError(path=container.at("image"), problem="is required")
    container.text("name")
    template.update(image=image)
    template.update(command_of(container, gpus=gpus, supervised=supervised))
    # Phase 3: settings of the container that have an equal in the template.
    _fill(template, "imagePullPolicy", container.text("imagePullPolicy", to=_TEMPLATE))
    _fill(template, "workingDir", container.text("workingDir", to=f"{_TEMPLATE}.workingDir"))
    _fill(template, "env", env_of(container, to=_TEMPLATE))
    _fill(template, "envFrom", env_from(container, to=_TEMPLATE))
    # Phase 4: volumes and the other containers. Mounts can refer to volumes only.
    volumes = volumes_of(pod)
    mounts = mounts_of(container, volumes=volumes, to=_TEMPLATE)
    before, beside = _init_containers(pod, volumes), _sidecars(pod, container, volumes)
    helpers = (*before, *beside)
    # A memory-backed /dev/shm is dropped only if no helper container mounts it.
    used = [*mounts, *(mount for each in helpers for mount in each.get("volumeMounts", ()))]
    _fill(template, "initContainers", before)
    _fill(template, "sidecars", beside)
    _fill(template, "volumes", without_shared_memory(volumes, used))
    _fill(template, "volumeMounts", mounts)
    _fill(template, "imagePullSecrets", _pull_secrets(pod))
    # Phase 5: user, groups and the grace period.
    _security(pod, container, template)
    _fill(
        template,
        "terminationGracePeriodSeconds",
        pod.number(
            "terminationGracePeriodSeconds", to=f"{_TEMPLATE}.terminationGracePeriodSeconds"
        ),
    )
    # Phase 6: report the fields without an equal.
    for name, why in _REASONS.items():
        pod.leave_out(name, why)
    for name, why in _CONTAINER_REASONS.items():
        container.leave_out(name, why)
    return PodHalf(spec=spec, template=template, gpus=gpus)


def gpus_of(pod_template: Fields) -> int:
    """Sum the GPUs of a pod over its containers."""
    containers = pod_template.below("spec").each("containers")
    return sum(_gpu_count(container) for container in containers)


def launch_fields(words: Sequence[str], *, gpus: int, path: str, fields: Fields) -> Json:
    """Return `launch` so that a command behaves as before. It was started once per pod.

    Args:
        words: the command.
        gpus: GPUs of each Pod.
        path: path of the command, for notes.
        fields: the container.
    """
    # Users may give a path to the program. The file name identifies a launcher.
    program = PurePosixPath(words[0]).name
    once_a_pod = starts_ranks(words) is not False
    # A command of a source system ran once per pod. PerGpu is equal to that only with one GPU.
    launch = "PerPod" if once_a_pod or gpus > 1 else "PerGpu"
    fields.notes.check(
        path,
        f"template.launch is {launch}: an agent starts the command and restarts it after a"
        " failure; remove launch to use only the kubelet",
    )
    # torchrun and similar launchers start one process per GPU. Other programs may expect this too.
    if not once_a_pod and gpus > 1:
        fields.notes.check(
            path,
            f"{program} is started once per pod of {gpus} GPUs, as before, without RANK and"
            " WORLD_SIZE; if it needs one process per GPU, set template.launch to PerGpu",
        )
    return {"launch": launch}


def command_of(container: Fields, *, gpus: int, supervised: bool = True) -> Json:
    """Return the command, its arguments, and the launcher that starts it.

    Args:
        container: the container that trains.
        gpus: GPUs of each Pod.
        supervised: whether an agent may start the ranks.
    """
    command = container.texts("command", to=f"{_TEMPLATE}.command")
    args = container.texts("args", to=f"{_TEMPLATE}.args")
    fields: Json = {}
    # Without an agent, the kubelet starts the command, and `launch` must be absent.
    if command and supervised:
        fields = launch_fields(
            [*command, *args], gpus=gpus, path=container.at("command"), fields=container
        )
    if command:
        fields["command"] = command
    # An agent needs the command line. Images do not show theirs to the API.
    elif supervised:
        container.notes.check(
            container.path,
            "without a command the kubelet starts the image's entry point; set template.command"
            " and template.launch for restarts in place",
        )
    if args:
        fields["args"] = args
    return fields


def training_container(pod: Fields, *, name: str | None) -> Fields:
    """Return the container of this name, or the one with the most GPUs. The others are noted.

    Raises:
        ConversionError: there is none.
    """
    containers = pod.each("containers")
    if not containers:
        raise ConversionError(path=pod.at("containers"), problem="is required")
    # The training operators identify the main container by a fixed name.
    named = [container for container in containers if container.text("name") == name]
    # `max` returns the first of equal containers, so containers without GPUs keep their order.
    return named[0] if named else max(containers, key=_gpu_count)


def _gpu_count(container: Fields) -> int:
    resources = container.below("resources")
    # For extended resources Kubernetes requires equal requests and limits. One may be absent.
    limits, requests = resources.below("limits"), resources.below("requests")
    return limits.number(GPU) or requests.number(GPU) or 0


def resources_of(resources: Fields, *, to: str = "spec") -> tuple[int, Json]:
    """Return the GPUs of a container and its other resources. Limits override requests.

    `to` is the path of the result, for notes.
    """
    limits, requests = resources.below("limits"), resources.below("requests")
    gpus, amounts = 0, dict[str, Any]()
    # A dictionary keeps the order of the input and removes duplicates.
    for name in dict.fromkeys((*limits.names(), *requests.names())):
        most, least = limits.text(name), requests.text(name)
        path = (limits if most is not None else requests).at(name)
        amount = most if most is not None else least
        # GPUs move to `gpusPerNode`. All other amounts stay in `resources`.
        if name == GPU:
            gpus = limits.number(name) or requests.number(name) or 0
            resources.notes.carried(path, f"{to}.gpusPerNode")
            continue
        # Partitions and GPUs of other vendors need a GpuPool, not a resource name.
        if "gpu" in name or name.startswith("nvidia.com/mig-"):
            resources.notes.left_out(path, f"GPUs are {GPU}; set {to}.gpusPerNode")
            continue
        amounts[name] = amount
        resources.notes.carried(path, f"{to}.resources")
        # A TrainingJob has one amount per resource. The limit is the safe choice of two.
        if least is not None and most is not None and least != most:
            resources.notes.left_out(
                requests.at(name),
                f"requests equal the limits ({most}), so that pods are Guaranteed",
            )
    return gpus, amounts


def _placement(pod: Fields) -> Json:
    spec: Json = {}
    selector = pod.below("nodeSelector")
    labels = {name: selector.text(name) for name in selector.names()}
    if labels:
        pod.notes.carried(pod.at("nodeSelector"), "spec.nodeSelector")
        spec["nodeSelector"] = labels
    # Each rejected toleration adds its own note.
    tolerations = [kept for entry in pod.each("tolerations") if (kept := _toleration(entry))]
    if tolerations:
        pod.notes.carried(pod.at("tolerations"), "spec.tolerations")
        spec["tolerations"] = tolerations
    terms = _required_terms(pod)
    if terms:
        spec["nodeAffinity"] = {"required": terms}
    return spec


def _toleration(entry: Fields) -> Json | None:
    key = entry.text("key")
    toleration: Json = {"key": key}
    for name in ("operator", "value", "effect"):
        _fill(toleration, name, entry.text(name))
    # Drumline moves gangs off failed nodes, so a time limit of the kubelet has no effect.
    if entry.raw("tolerationSeconds") is not None:
        entry.notes.left_out(entry.at("tolerationSeconds"), "a toleration has no time limit")
    # A toleration without a key tolerates every taint, including those of failed nodes.
    if key is None or _NODE_STATE.match(key):
        entry.notes.left_out(entry.path, "taints of node state cannot be tolerated")
        return None
    if key == GPU:
        entry.notes.left_out(entry.path, "the taint of GPU nodes is always tolerated")
        return None
    return toleration


def _required_terms(pod: Fields) -> list[Json]:
    affinity = pod.below("affinity").below("nodeAffinity")
    needed = affinity.below("requiredDuringSchedulingIgnoredDuringExecution")
    terms: list[Json] = []
    # Terms are alternatives, and expressions within a term must all hold. Keep this nesting.
    for term in needed.each("nodeSelectorTerms"):
        expressions: list[Json] = []
        # `matchFields` selects nodes by name. The note about unread fields reports it.
        for entry in term.each("matchExpressions"):
            expression: Json = {"key": entry.text("key"), "operator": entry.text("operator")}
            _fill(expression, "values", entry.texts("values"))
            expressions.append(expression)
        # An empty term matches no node in Kubernetes, so it adds no alternative.
        if expressions:
            terms.append({"matchExpressions": expressions})
    if terms:
        pod.notes.carried(affinity.path, "spec.nodeAffinity.required")
    return terms


def metadata_of(metadata: Fields, *, to: str) -> Json:
    """Return labels and annotations without those that are reserved for the platform."""
    template: Json = {}
    for kind in ("labels", "annotations"):
        below = metadata.below(kind)
        kept: Json = {}
        # `unread=True`: another function may have taken some labels before, such as the queue name.
        for name in below.names(unread=True):
            text = below.text(name)
            if _PLATFORM.match(name):
                metadata.notes.left_out(
                    below.at(name), f"{kind} of this domain are reserved for the platform"
                )
            else:
                kept[name] = text
                metadata.notes.carried(below.at(name), f"{to}.{kind}")
        _fill(template, kind, kept)
    return template


def _init_containers(pod: Fields, volumes: list[Json]) -> list[Json]:
    kept: list[Json] = []
    for container in pod.each("initContainers"):
        # Kubernetes marks a sidecar by `restartPolicy: Always` on an init container.
        if container.raw("restartPolicy") is not None:
            continue  # a sidecar
        name, command = container.text("name") or "", container.texts("command")
        # The name `trainer` is reserved for the container that trains.
        if not command or name == "trainer":
            container.forget()
            pod.notes.left_out(container.path, "init containers need a command and a unique name")
            continue
        to = f"{_TEMPLATE}.initContainers[{len(kept)}]"
        container.leave_out("resources", "it uses the CPU and memory of the job")
        kept.append(_helper(container, name, volumes=volumes, to=to))
    return kept


def _sidecars(pod: Fields, training: Fields, volumes: list[Json]) -> list[Json]:
    """Init containers that are restarted, and the containers beside the one that trains."""
    # Ordinary containers run beside the training container, so they become sidecars.
    ordinary = [each for each in pod.each("containers") if each.path != training.path]
    for container in ordinary:
        pod.notes.check(container.path, "a sidecar is restarted whenever it ends")
    restarted = (
        each for each in pod.each("initContainers") if each.raw("restartPolicy") is not None
    )
    kept: list[Json] = []
    # Kubernetes starts sidecars in order. Restarted init containers started before the others.
    for container in (*restarted, *ordinary):
        name = container.text("name") or ""
        if name == "trainer" or not (container.has("image") or container.has("command")):
            container.forget()
            pod.notes.left_out(container.path, "sidecars need an image and a unique name")
            continue
        to = f"{_TEMPLATE}.sidecars[{len(kept)}]"
        each = _helper(container, name, volumes=volumes, to=to)
        _fill(each, "envFrom", env_from(container, to=to))
        _fill(each, "resources", _own_resources(container))
        kept.append(each)
    return kept


def _own_resources(container: Fields) -> Json:
    """Return a container's CPU and memory. Limits override requests."""
    limits = container.below("resources").below("limits")
    requests = container.below("resources").below("requests")
    own: Json = {}
    # GPUs of a sidecar have no equal. Only the training container gets GPUs.
    for name in ("cpu", "memory"):
        most, least = limits.text(name), requests.text(name)
        _fill(own, name, least if most is None else most)
    return own


def _helper(container: Fields, name: str, *, volumes: list[Json], to: str) -> Json:
    each: Json = {"name": name}
    _fill(each, "image", container.text("image"))
    _fill(each, "command", container.texts("command"))
    _fill(each, "args", container.texts("args"))
    _fill(each, "env", env_of(container, to=to))
    _fill(each, "volumeMounts", mounts_of(container, volumes=volumes, to=to))
    container.notes.carried(container.path, to)
    return each


def _pull_secrets(pod: Fields) -> list[str]:
    named = [entry.text("name") or "" for entry in pod.each("imagePullSecrets")]
    # Holders of a job token have the operator's rights at the agents, so no template may use it.
    secrets = [name for name in named if name and not name.endswith(TOKEN_SECRET_SUFFIX)]
    if secrets:
        pod.notes.carried(pod.at("imagePullSecrets"), f"{_TEMPLATE}.imagePullSecrets")
    return list(dict.fromkeys(secrets))


def _security(pod: Fields, container: Fields, template: Json) -> None:
    """Convert the security context: the process is never root, and has no capability."""
    user, path = None, ""
    # The container's settings override the pod's settings, as in Kubernetes.
    for level in (pod, container):
        context = level.below("securityContext")
        given = context.number("runAsUser")
        if given is not None:
            user, path = given, context.at("runAsUser")
        # User 0 is recorded, but the template never receives it.
        if given == 0:
            context.notes.left_out(
                context.at("runAsUser"),
                "a template cannot run as root; the pool can allow root: podProfile.runAsUser",
            )
        # The API rejects group 0, because it would give access to files of root.
        groups = [group for group in context.texts("supplementalGroups") if group != "0"]
        if groups:
            template["supplementalGroups"] = [int(group) for group in groups if group.isdecimal()]
            context.notes.carried(
                context.at("supplementalGroups"), f"{_TEMPLATE}.supplementalGroups"
            )
        for name, why in (
            ("fsGroup", "volumes keep their groups; add the group to template.supplementalGroups"),
            ("capabilities", "the pool defines it: podProfile.capabilities of the GpuPool"),
            (
                "privileged",
                "training containers cannot have it; for fast networks see docs/pools.md",
            ),
            ("runAsNonRoot", "it always applies"),
            ("allowPrivilegeEscalation", "never"),
        ):
            context.leave_out(name, why)
    # Zero and absent both lead to the default user, so one note covers both.
    if user:
        template["runAsUser"] = user
        container.notes.carried(path, f"{_TEMPLATE}.runAsUser")
    else:
        container.notes.check(
            container.path, "its process runs as user 65532 unless you set template.runAsUser"
        )


def _fill(fields: Json, name: str, value: object) -> None:
    # Absent fields keep manifests short, and the defaults of the CRD apply.
    if value is not None and value not in ([], {}):
        fields[name] = value
