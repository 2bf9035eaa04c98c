"""Convert the new nodes of GpuPools to offers, and demands for nodes to placeholders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final

import msgspec

from drumline.controller.informers.volumes import attachable
from drumline.controller.nodes.conversion import MAX_AMOUNT, GpuUnits, resources_of
from drumline.controller.pools.placeholder_pods import (
    owner_reference,
    placeholder_pod,
    placeholder_spec,
    zone_selector,
)
from drumline.kube.quantity import amount
from drumline.kube.views import PodView
from drumline_api.autoscaling import NewNode
from drumline_api.base import ANNOTATION_NODE_DEMAND, LABEL_NODE_DEMAND
from drumline_api.gpupool import GpuPoolSpec
from drumline_scheduler.autoscaling.node_demands import NodeDemand
from drumline_scheduler.model import Gang, Node, NodeOffer, Taint, TaintEffect
from drumline_scheduler.model.autoscaling import ZONE_LABEL
from drumline_scheduler.resources import NOTHING, Resources

_PODS: Final = "110"
"""Default of the kubelet."""

Json = dict[str, Any]


class DemandRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Annotation of a placeholder about the demand that it belongs to."""

    key: str
    pool: str
    zone: str
    nodes: int
    pool_nodes: int
    asked_at: float
    placeholders: int


_RECORD: Final = msgspec.json.Decoder(DemandRecord)


def offers_of(
    pools: Mapping[str, GpuPoolSpec], *, limited: Iterable[str] = ()
) -> tuple[NodeOffer, ...]:
    """Return the nodes that an autoscaler can add: for each pool, its zones in their order.

    Args:
        pools: specs by name.
        limited: CSI drivers that can attach a limited number of volumes to some node. The limit of
            a new node is not known.
    """
    volumes = tuple((attachable(driver), MAX_AMOUNT) for driver in sorted(limited))
    return tuple(
        NodeOffer(
            node=_new_node(name, spec, new=scaling.node, zone=zone, volumes=volumes),
            zone=zone,
            pool_limit=scaling.max_nodes,
        )
        for name, spec in pools.items()
        if (scaling := spec.autoscaling) is not None
        for zone in scaling.zones or [""]
    )


def timeouts_of(pools: Mapping[str, GpuPoolSpec]) -> dict[str, float]:
    """Return by pool the seconds after which a demand is withdrawn."""
    return {
        name: float(scaling.timeout_seconds)
        for name, spec in pools.items()
        if (scaling := spec.autoscaling) is not None
    }


def _new_node(
    pool: str,
    spec: GpuPoolSpec,
    *,
    new: NewNode,
    zone: str,
    volumes: tuple[tuple[str, int], ...],
) -> Node:
    labels = {**(new.labels or {}), **spec.node_selector, **({ZONE_LABEL: zone} if zone else {})}
    amounts = {
        each: amount(each, text) for each, text in {"pods": _PODS, **new.allocatable}.items()
    }
    return Node(
        name="new",
        pool=pool,
        allocatable=resources_of(amounts, units=GpuUnits.of(spec), pods=None)
        + Resources(extended=volumes),
        domains=tuple(labels.get(level.node_label, "") for level in spec.topology_levels or []),
        labels=labels,
        taints=tuple(
            Taint(key=taint.key, value=taint.value or "", effect=TaintEffect(taint.effect))
            for taint in new.taints or ()
        ),
    )


def demand_name(demand: NodeDemand) -> str:
    """Return the prefix of the names of a demand's placeholders, unique to the demand."""
    stamp = f"{demand.uid} {demand.pool} {demand.zone} {demand.asked_at}"
    return f"placeholder-{sha256(stamp.encode()).hexdigest()[:12]}"


def placeholders_of(
    demand: NodeDemand,
    *,
    gang: Gang,
    spec: GpuPoolSpec,
    pool_uid: str,
    namespace: str,
    image: str,
) -> list[Json]:
    """Return the placeholders of a demand, one for each node that the gang would use.

    Args:
        demand: the demand.
        gang: the gang that waits for the nodes.
        spec: spec of the demand's pool.
        pool_uid: uid of the GpuPool, which owns the placeholders.
        namespace: namespace of the operator.
        image: image of the pods. It is never pulled.
    """
    # The first placeholder records the demand, the others only name it.
    name = demand_name(demand)
    return [
        placeholder_pod(
            name=f"{name}-{index}",
            namespace=namespace,
            labels={LABEL_NODE_DEMAND: demand.uid},
            annotations={ANNOTATION_NODE_DEMAND: record_of(demand) if index == 0 else name},
            owner=owner_reference(demand.pool, uid=pool_uid),
            spec=placeholder_spec(
                share, gang=gang, spec=spec, image=image, where=zone_selector(demand.zone)
            ),
        )
        for index, share in enumerate(demand.shares)
    ]


def demands_in(placeholders: Iterable[PodView]) -> tuple[NodeDemand, ...]:
    """Return the demands of an earlier leader whose placeholders all exist.

    The gang's share of each node is not recorded. The placeholders' requests contain it.
    """
    # Phase 1: count the placeholders of each demand, and find its record.
    records: dict[str, DemandRecord] = {}
    counts: Counter[str] = Counter()
    for pod in placeholders:
        uid = pod.labels.get(LABEL_NODE_DEMAND, "")
        counts[uid] += 1
        text = pod.annotations.get(ANNOTATION_NODE_DEMAND, "")
        if text.startswith("{"):
            with suppress(msgspec.MsgspecError):
                records[uid] = _RECORD.decode(text)
    # Phase 2: skip incomplete demands. They are deleted, and their nodes are requested again.
    return tuple(
        _demand_of(record, uid=uid)
        for uid, record in records.items()
        if counts[uid] == record.placeholders
    )


def recorded_demand(annotations: Mapping[str, str], *, uid: str) -> NodeDemand | None:
    """Return the demand that an object's annotation records, or None."""
    try:
        record = _RECORD.decode(annotations.get(ANNOTATION_NODE_DEMAND, ""))
    except msgspec.MsgspecError:
        return None
    return _demand_of(record, uid=uid)


def _demand_of(record: DemandRecord, *, uid: str) -> NodeDemand:
    return NodeDemand(
        uid=uid,
        key=record.key,
        pool=record.pool,
        zone=record.zone,
        nodes=record.nodes,
        pool_nodes=record.pool_nodes,
        shares=(NOTHING,) * record.placeholders,
        asked_at=record.asked_at,
    )


def record_of(demand: NodeDemand) -> str:
    """Return the annotation of a demand's first object."""
    record = DemandRecord(
        key=demand.key,
        pool=demand.pool,
        zone=demand.zone,
        nodes=demand.nodes,
        pool_nodes=demand.pool_nodes,
        asked_at=demand.asked_at,
        placeholders=len(demand.shares),
    )
    return msgspec.json.encode(record).decode()
