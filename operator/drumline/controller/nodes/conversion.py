"""Nodes and pools as the API server shows them -> the values the pure rooms decide on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from drumline.kube.views import NodeView
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline_api.base import TAINT_PROMISED
from drumline_api.capacity import PoolCapacity
from drumline_api.gpupool import GpuPoolSpec
from drumline_api.money import millionths
from drumline_api.objects import builtin
from drumline_api.resource_names import shares_gpus
from drumline_scheduler.disruption.model import ConditionFact, NodeFacts, TaintFact
from drumline_scheduler.disruption.node_scores import TRUSTED, NodeStanding
from drumline_scheduler.model import CapacityType, Node, Pool, Taint, TaintEffect
from drumline_scheduler.resources import NOTHING, Resources

_EFFECTS = frozenset(effect.value for effect in TaintEffect)
MAX_AMOUNT = 2**48
"""More of anything counts as this: 256 TiB, as bytes. Anybody may ask for an int64 of it and bind
the pod past every scheduler, and the sums over pods and nodes have to stay below one."""
KARPENTER_POOL = "karpenter.sh/nodepool"
KARPENTER_INITIALIZED = "karpenter.sh/initialized"
STARTUP_TAINTS = frozenset(
    {"karpenter.sh/unregistered", "node.cloudprovider.kubernetes.io/uninitialized"}
)
STARTUP_TAINT_PREFIXES = (
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
)
"""Those that cluster-autoscaler knows without its flag --startup-taint."""
STARTUP_TAINT_SUFFIX = "/agent-not-ready"
"""Of node.cilium.io, ebs.csi.aws.com and their like, until their agent runs there."""


@dataclass(frozen=True, slots=True)
class GpuUnits:
    """How a pool counts GPUs: by resource, what one of it is worth.

    Where there are partitions, a GPU is worth several parts, and how many there are of each kind is
    counted beside the sum of parts: two halves are not a whole.
    """

    worth: Mapping[str, int]
    is_mixed: bool = False
    """Whether there are partitions."""

    @classmethod
    def of(cls, spec: GpuPoolSpec) -> GpuUnits:
        """Those of a pool."""
        if spec.partitions is None:
            return cls({spec.gpu_resource: 1})
        parts = {each.resource: each.parts for each in spec.partitions.resources}
        return cls({spec.gpu_resource: spec.partitions.parts_per_gpu, **parts}, is_mixed=True)


ANY_GPUS: Final = GpuUnits({"": 1})
"""Of a gang that may run in several pools: how many, under the empty name."""


def resources_of(amounts: Mapping[str, int], *, units: GpuUnits, pods: int | None) -> Resources:
    """Amounts by Kubernetes' resource names (CPU in thousandths) as the scheduler counts them.

    Args:
        amounts: a node's allocatable or a pod's requests.
        units: which of them are the GPUs of the node's pool.
        pods: slots, where the amounts do not say (a pod takes one).
    """
    plain = {"cpu", "memory", "pods", "ephemeral-storage"}
    if not units.is_mixed:
        plain |= units.worth.keys()
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


def pool_of(name: str, spec: GpuPoolSpec, *, lost_percent: int = 0) -> Pool:
    """A GpuPool as the scheduler sees it.

    Args:
        name: of the pool.
        spec: of the pool.
        lost_percent: how much of the work there is lost to reclaims.
    """
    capacity, partitions = spec.capacity or PoolCapacity(), spec.partitions
    price = capacity.price_per_gpu_hour
    return Pool(
        name=name,
        levels=tuple(level.name for level in spec.topology_levels or []),
        capacity=CapacityType(capacity.type),
        price=None if price is None else millionths(price),
        partitions=tuple(
            sorted(each.resource for each in (partitions.resources if partitions else ()))
        ),
        parts_per_gpu=1 if partitions is None else max(1, partitions.parts_per_gpu),
        gpu_resource=spec.gpu_resource,
        auxiliary=frozenset(spec.auxiliary_resources or ()),
        gpu_model=spec.hardware.gpu if spec.hardware else "",
        lost_percent=lost_percent,
    )


def node_facts_of(view: NodeView, *, device_taints: Iterable[builtin.Taint] = ()) -> NodeFacts:
    """A node as far as it announces its end.

    Args:
        view: the node.
        device_taints: of its devices, as their driver publishes them.
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
    """Whether a node was added and is not set up yet, by what it says itself.

    Karpenter sets the label once a node is Ready, its startup taints are gone and its resources are
    there; cluster-autoscaler says nothing like it.
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
    """Whether others are to be taken first: cluster-autoscaler marks empty nodes so.

    Who takes the unmarked one of two lets it take the other away.
    """
    return any(taint.effect == TaintEffect.PREFER_NO_SCHEDULE for taint in view.taints)


def set_up_by(view: NodeView, spec: GpuPoolSpec) -> float:
    """When a node has its GPUs, or its device plugin has died; in seconds since the epoch."""
    created = seconds_of(view.creation_time)
    if spec.autoscaling is None or created is None:
        return inf
    return created + spec.autoscaling.timeout_seconds


def _waits_for_gpus(spec: GpuPoolSpec, allocatable: Resources, *, used: Resources) -> bool:
    """Whether an autoscaler's node has no GPUs yet: its device plugin has not registered them."""
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
    """A node of a pool as the scheduler sees it.

    Args:
        view: the node.
        pool: name of its pool.
        spec: its pool.
        used: requests of all pods bound to it.
        terminating: the part of them whose pods are being deleted.
        overdue: the part of these that should have been gone a while ago.
        hanging: the pods that should have been gone, for messages.
        is_set_up: whether no more GPUs are expected (`set_up_by`).
        distrusted: whether its kubelet refused a pod that fitted.
        closed: why it takes no new pods although it runs.
        standing: what follows from what is known against it.
        hides_gpus: whether it has GPUs as devices alone, in a pool that counts a resource.
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


def capped(amounts: Resources) -> Resources:
    """The sum of pods on a node, each amount at most `MAX_AMOUNT` again."""
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
    """A time as a component wrote it; None for none, or for what is no time."""
    try:
        return parse_timestamp(text) if text else None
    except ValueError:
        return None
