"""Convert nodes and pools of the API server to the values of the pure packages."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from drumline.kube.views import NodeView, RuntimeClassView
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline_api.base import TAINT_PROMISED
from drumline_api.capacity import PoolCapacity
from drumline_api.gpupool import GpuPoolSpec
from drumline_api.money import millionths
from drumline_api.objects import builtin
from drumline_api.resource_names import shares_gpus
from drumline_scheduler.disruption.model import ConditionFact, NodeFacts, TaintFact
from drumline_scheduler.disruption.node_scores import TRUSTED, NodeStanding
from drumline_scheduler.model import (
    CapacityType,
    Node,
    Pool,
    Taint,
    TaintEffect,
    Toleration,
    TolerationOperator,
)
from drumline_scheduler.resources import NOTHING, Resources

_EFFECTS = frozenset(effect.value for effect in TaintEffect)
MAX_AMOUNT = 2**48
"""Upper limit of any amount: 256 TiB, as bytes.

Any user may request an int64 of a resource and bind the pod without a scheduler. The sums over pods
and nodes must stay below an int64.
"""
_OPERATORS: Final = frozenset({"", *map(str, TolerationOperator)})
KARPENTER_POOL = "karpenter.sh/nodepool"
KARPENTER_INITIALIZED = "karpenter.sh/initialized"
STARTUP_TAINTS = frozenset(
    {"karpenter.sh/unregistered", "node.cloudprovider.kubernetes.io/uninitialized"}
)
STARTUP_TAINT_PREFIXES = (
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
)
"""Taints that cluster-autoscaler recognises without its flag --startup-taint."""
STARTUP_TAINT_SUFFIX = "/agent-not-ready"
"""Suffix of the taints of node.cilium.io, ebs.csi.aws.com and others, until their agent runs."""


@dataclass(frozen=True, slots=True)
class GpuUnits:
    """Units in which a pool counts GPUs: the worth of one unit of each resource.

    With partitions, a GPU is worth several parts. Each kind of partition is also counted beside the
    sum of parts, because two halves are not a whole GPU.
    """

    worth: Mapping[str, int]
    is_mixed: bool = False
    """True if the pool has partitions."""

    @classmethod
    def of(cls, spec: GpuPoolSpec) -> GpuUnits:
        """Return the units of a pool."""
        if spec.partitions is None:
            return cls({spec.gpu_resource: 1})
        parts = {each.resource: each.parts for each in spec.partitions.resources}
        return cls({spec.gpu_resource: spec.partitions.parts_per_gpu, **parts}, is_mixed=True)


_OF_EVERY_NODE: Final = frozenset({"cpu", "memory", "pods", "ephemeral-storage"})
ANY_GPUS: Final = GpuUnits({"": 1})
"""Units of a gang that may run in several pools: the number of GPUs, under the empty name."""


def resources_of(amounts: Mapping[str, int], *, units: GpuUnits, pods: int | None) -> Resources:
    """Convert amounts by Kubernetes resource name to the scheduler's value.

    Args:
        amounts: allocatable of a node or requests of a pod. CPU in thousandths of a core.
        units: the GPUs of the node's pool.
        pods: number of pods, if the amounts do not contain it (a pod takes one).
    """
    # With partitions the GPU resources are extended ones as well: each kind is limited on its own.
    plain = _OF_EVERY_NODE if units.is_mixed else _OF_EVERY_NODE | units.worth.keys()
    return Resources(
        gpus=_capped(
            sum(worth * _capped(amounts.get(name, 0)) for name, worth in units.worth.items())
        ),
        cpu_millis=_capped(amounts.get("cpu", 0)),
        memory_bytes=_capped(amounts.get("memory", 0)),
        pods=_capped(amounts.get("pods", 0)) if pods is None else pods,
        ephemeral_bytes=_capped(amounts.get("ephemeral-storage", 0)),
        extended=tuple(
            (name, _capped(amount)) for name, amount in amounts.items() if name not in plain
        ),
    )


def held_of(requests: Mapping[str, int], *, units: GpuUnits, offered: Container[str]) -> Resources:
    """Return what a pod holds of its node. O(resources of the pod).

    A kubelet ignores resources that its node lacks, so a tenant may request more than it offers.

    Args:
        requests: requests of the pod by Kubernetes resource name.
        units: the GPUs of the node's pool.
        offered: resources of the node beside the GPUs and those of every node.
    """
    held = {
        name: amount
        for name, amount in requests.items()
        if name in _OF_EVERY_NODE or name in units.worth or name in offered
    }
    return resources_of(held, units=units, pods=1)


def pool_of(name: str, spec: GpuPoolSpec, *, lost_percent: int = 0) -> Pool:
    """Convert a GpuPool to the scheduler's value.

    Args:
        name: name of the pool.
        spec: its spec.
        lost_percent: extra cost of kept work because of reclaims, in percent.
    """
    capacity, partitions = spec.capacity or PoolCapacity(), spec.partitions
    price = capacity.price_per_gpu_hour
    return Pool(
        name=name,
        levels=tuple(level.name for level in spec.topology_levels or []),
        level_labels=tuple(level.node_label for level in spec.topology_levels or []),
        selector=",".join(f"{key}={value}" for key, value in spec.node_selector.items()),
        capacity=CapacityType(capacity.type),
        price=None if price is None else millionths(price),
        partitions=tuple(
            sorted(each.resource for each in (partitions.resources if partitions else ()))
        ),
        parts_per_gpu=1 if partitions is None else max(1, partitions.parts_per_gpu),
        share_weight=spec.share_weight,
        gpu_resource=spec.gpu_resource,
        device_driver=spec.devices.driver if spec.devices else "",
        auxiliary=frozenset(spec.auxiliary_resources or ()),
        gpu_model=spec.hardware.gpu if spec.hardware else "",
        lost_percent=lost_percent,
    )


def node_facts_of(view: NodeView, *, device_taints: Iterable[builtin.Taint] = ()) -> NodeFacts:
    """Convert a node to the facts that can announce its end.

    Args:
        view: the node.
        device_taints: taints of its devices, as their driver publishes them.
    """
    return NodeFacts(
        name=view.name,
        labels=view.labels,
        annotations=view.annotations,
        taints=tuple(map(_taint_fact, view.taints)),
        device_taints=tuple(map(_taint_fact, device_taints)),
        conditions=tuple(
            ConditionFact(
                type=condition.type,
                status=condition.status,
                reason=condition.reason,
                message=condition.message,
                since=seconds_of(condition.since_time),
            )
            for condition in view.conditions
        ),
        unschedulable=view.unschedulable,
        terminating=view.terminating,
    )


def is_starting_up(view: NodeView) -> bool:
    """Return whether a node was added and is not set up yet, by its labels and taints.

    Karpenter sets its label when a node is Ready, its startup taints are gone and its resources are
    present. cluster-autoscaler has no such label.
    """
    labels = view.labels
    if KARPENTER_POOL in labels and labels.get(KARPENTER_INITIALIZED) != "true":
        return True
    return any(
        taint.key in STARTUP_TAINTS
        or taint.key.startswith(STARTUP_TAINT_PREFIXES)
        or taint.key.endswith(STARTUP_TAINT_SUFFIX)
        for taint in view.taints
    )


def _is_avoided(view: NodeView) -> bool:
    """Return whether other nodes should be used first.

    cluster-autoscaler marks empty nodes so. Using the unmarked node of two lets it remove the
    other.
    """
    return any(taint.effect == TaintEffect.PREFER_NO_SCHEDULE for taint in view.taints)


def setup_deadline(view: NodeView, spec: GpuPoolSpec) -> float:
    """Return the time until which a node must have its GPUs, in seconds since the epoch.

    After it, a node without GPUs has a dead device plugin.
    """
    created = seconds_of(view.creation_time)
    if spec.autoscaling is None or created is None:
        return inf
    return created + spec.autoscaling.timeout_seconds


def _waits_for_gpus(spec: GpuPoolSpec, allocatable: Resources, *, used: Resources) -> bool:
    """Return whether the device plugin of an autoscaler's node has not registered GPUs yet."""
    return spec.autoscaling is not None and not allocatable.gpus and not used.gpus


def node_of(
    view: NodeView,
    *,
    pool: str,
    spec: GpuPoolSpec,
    used: Resources,
    terminating: Resources = NOTHING,
    overdue: Resources = NOTHING,
    hanging: tuple[str, ...] = (),
    is_set_up: bool = False,
    distrusted: bool = False,
    closed: str = "",
    standing: NodeStanding = TRUSTED,
    hides_gpus: bool = False,
) -> Node:
    """Convert a node of a pool to the scheduler's value.

    Args:
        view: the node.
        pool: name of its pool.
        spec: spec of its pool.
        used: requests of all pods bound to it.
        terminating: part of `used` whose pods are being deleted.
        overdue: part of `terminating` that should have left some time ago.
        hanging: names of the pods that should have left, for messages.
        is_set_up: whether no more GPUs are expected (`setup_deadline`).
        distrusted: whether its kubelet rejected a pod that fitted.
        closed: why it takes no new pods although it runs. Empty if it does.
        standing: verdict on the evidence against it.
        hides_gpus: whether its GPUs exist only as devices, in a pool that counts a resource.
    """
    allocatable = resources_of(view.allocatable, units=GpuUnits.of(spec), pods=None)
    return Node(
        name=view.name,
        pool=pool,
        allocatable=allocatable,
        used=used,
        domains=tuple(
            view.labels.get(level.node_label, "") for level in spec.topology_levels or []
        ),
        labels=view.labels,
        taints=tuple(
            Taint(key=taint.key, value=taint.value, effect=TaintEffect(taint.effect))
            for taint in view.taints
            if taint.effect in _EFFECTS and taint.key != TAINT_PROMISED
        ),
        unschedulable=view.unschedulable or view.terminating,
        ready=view.ready,
        starting=is_starting_up(view)
        or (not is_set_up and _waits_for_gpus(spec, allocatable, used=used)),
        distrusted=distrusted,
        closed=closed,
        shares_gpus=shares_gpus(view.labels),
        hides_gpus=hides_gpus,
        quarantined=standing.quarantined,
        suspicion=standing.suspicion + _is_avoided(view),
        terminating=terminating,
        overdue=overdue,
        hanging=hanging,
    )


def with_runtime_class(node: Node, runtime: RuntimeClassView | None) -> Node:
    """Add to a node which of its taints and labels the RuntimeClass of its pool concerns.

    Args:
        node: a node of a pool.
        runtime: the RuntimeClass of the pool's pods. None: they have none.
    """
    if runtime is None:
        return node
    given = tolerations_of(runtime.tolerations)
    has_labels = all(node.labels.get(key) == value for key, value in runtime.node_selector)
    return replace(
        node,
        tolerated=tuple(
            taint for taint in node.taints if any(each.tolerates(taint) for each in given)
        ),
        outside="" if has_labels else runtime.name,
    )


def tolerations_of(given: Iterable[builtin.Toleration]) -> tuple[Toleration, ...]:
    """Return the tolerations of a pod or a RuntimeClass that the scheduler knows.

    Others, with an operator or effect of a newer Kubernetes, tolerate nothing here.
    """
    return tuple(
        Toleration(
            key=each.key,
            operator=TolerationOperator(each.operator or "Equal"),
            value=each.value,
            effect=TaintEffect(each.effect) if each.effect else None,
        )
        for each in given
        if each.operator in _OPERATORS and each.effect in {"", *_EFFECTS}
    )


def capped(amounts: Resources) -> Resources:
    """Limit each amount of a sum over the pods of a node to `MAX_AMOUNT` again."""
    return replace(
        amounts,
        gpus=_capped(amounts.gpus),
        cpu_millis=_capped(amounts.cpu_millis),
        memory_bytes=_capped(amounts.memory_bytes),
        ephemeral_bytes=_capped(amounts.ephemeral_bytes),
        extended=tuple((name, _capped(amount)) for name, amount in amounts.extended),
    )


def _capped(amount: int) -> int:
    return max(0, min(amount, MAX_AMOUNT))


def _taint_fact(taint: builtin.Taint) -> TaintFact:
    return TaintFact(
        key=taint.key,
        effect=taint.effect,
        value=taint.value,
        added_at=seconds_of(taint.time_added or ""),
    )


def seconds_of(text: str) -> float | None:
    """Parse a time that a component wrote. None for an empty or invalid text."""
    try:
        return parse_timestamp(text) if text else None
    except ValueError:
        return None
