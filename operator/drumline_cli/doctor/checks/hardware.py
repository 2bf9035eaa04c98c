"""Nodes: their GPUs, the pools that select them, their place in the network, their clocks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from drumline_api.base import GROUP, VERSION
from drumline_api.resource_names import shares_gpus
from drumline_cli.doctor.facts import DeviceSlice, NodeClock, NodeFact, PoolFact
from drumline_cli.doctor.results import CheckFailed, Passed, Result, Warned, some
from drumline_cli.formatting import duration, many
from drumline_scheduler.placement.pool_problems import (
    no_nodes,
    nodes_lack_label,
    nodes_offer_none,
)

VENDORS: Final[Mapping[str, str]] = {
    "nvidia.com": "nvidia.com/gpu",
    "amd.com": "amd.com/gpu",
    "habana.ai": "habana.ai/gaudi",
}
"""The domain of a vendor's resources and what counts whole GPUs."""
GPU_LABELS: Final[Mapping[str, str]] = {
    "nvidia.com/gpu.present": "nvidia.com",
    "feature.node.kubernetes.io/pci-10de.present": "nvidia.com",
    "feature.node.kubernetes.io/pci-0302_10de.present": "nvidia.com",
    "cloud.google.com/gke-accelerator": "nvidia.com",
    "karpenter.k8s.aws/instance-gpu-name": "nvidia.com",
    "feature.node.kubernetes.io/amd-gpu": "amd.com",
    "feature.node.kubernetes.io/pci-1002.present": "amd.com",
    "intel.feature.node.kubernetes.io/gaudi": "habana.ai",
}
"""Labels of nodes that have GPUs, whoever sets them: GPU feature discovery, node feature discovery,
clouds."""
PRODUCTS: Final = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")
"""Labels that name the model of a node's GPUs."""
AHEAD_WARNING_SECONDS: Final = 3.0
"""Kubelets' renewals and the server's stamps are known to a second."""
AHEAD_LIMIT_SECONDS: Final = 30.0
"""A spot instance announces its end 30 s (Azure, GCP) to 120 s (AWS) ahead, by its own clock."""


def gpus(nodes: tuple[NodeFact, ...], slices: tuple[DeviceSlice, ...]) -> Iterator[Result]:
    """Check whether nodes with GPUs offer them as countable resources."""
    # Drivers are named gpu.VENDOR, so the prefix is removed for the comparison.
    by_dra = {(device.node, device.driver.removeprefix("gpu.")) for device in slices}
    hidden: dict[str, list[str]] = {}
    by_claims_alone: dict[str, list[str]] = {}
    broken: list[str] = []
    offered = 0
    for node in nodes:
        # Resources of other domains, such as RDMA devices, are not GPUs.
        devices = {key: count for key, count in node.capacity.items() if _vendor(key)}
        offered += sum(node.allocatable.get(key, 0) for key in devices)
        # A device plugin removes unhealthy devices from allocatable, but not from capacity.
        broken += [
            f"{node.name} ({node.allocatable.get(key, 0)} of {count} {key})"
            for key, count in devices.items()
            if node.allocatable.get(key, 0) < count
        ]
        # Labels show GPUs that no device plugin offers. DRA is one explanation.
        for vendor in sorted(_labelled(node) - {_vendor(key) for key in devices if devices[key]}):
            lacking = by_claims_alone if (node.name, vendor) in by_dra else hidden
            lacking.setdefault(vendor, []).append(node.name)
    # One finding per vendor, with its nodes, keeps the output short.
    for vendor, names in hidden.items():
        yield CheckFailed(
            message=f"labels report GPUs on {some(names)}, but no kubelet offers {VENDORS[vendor]}",
            fix=f"install the device plugin of {vendor} (its GPU operator contains it), or check"
            " its pods on these nodes",
        )
    for vendor, names in by_claims_alone.items():
        yield CheckFailed(
            message=f"{some(names)} offer GPUs only by Dynamic Resource Allocation, but Drumline"
            f" counts resources such as {VENDORS[vendor]}",
            fix="run the device plugin instead of the DRA driver on the nodes of Drumline's"
            " pools, or let Drumline allocate the devices (spec.devices,"
            " docs/accelerators.md)",
        )
    if broken:
        # Unhealthy devices are a warning, because the other GPUs still work.
        yield Warned(
            message=f"devices are unhealthy on {some(broken)}",
            fix="check the log of the device plugin on these nodes, nvidia-smi and dmesg (Xid)",
        )
    if not hidden and not by_claims_alone:
        # A success needs GPUs. An empty cluster must not look healthy.
        if offered:
            yield Passed(message=f"{many(offered, 'GPU')} are offered")
        else:
            yield Warned(
                message="no node offers GPUs",
                fix="add nodes with GPUs and their device plugin; a pool can count another"
                " resource (gpuResource)",
            )


def pools(pools: tuple[PoolFact, ...], nodes: tuple[NodeFact, ...]) -> Iterator[Result]:
    """Check whether each pool has nodes with the same GPUs, and each GPU belongs to a pool."""
    if not pools:
        yield Warned(message="there is no GpuPool, so no job can start", fix=_a_pool(nodes))
        return
    # Each pool gets one result. An overlap hides further findings about the same nodes.
    for pool in pools:
        members, resource = members_of(pool, nodes), pool.spec.gpu_resource
        rivals = _rivals(pool, members, pools)
        yield _overlap(pool, rivals) if rivals else _pool(pool, members)
        # Pods on a shared GPU compete for its memory, so a gang must not depend on it.
        shared = [node.name for node in members if shares_gpus(node.labels)]
        if shared:
            yield Warned(
                message=f"{pool.name}: on {some(shared)} several {resource} share one GPU"
                " (time-slicing, MPS): only jobs with one GPU are placed there",
                fix="offer whole GPUs to gangs, or isolated partitions (MIG, spec.partitions);"
                " docs/accelerators.md",
            )
    # A node with GPUs outside all pools is often a forgotten label.
    selected = {node.name for pool in pools for node in members_of(pool, nodes)}
    outside = [
        node.name
        for node in nodes
        # Only resources that some pool counts are of interest.
        if node.name not in selected
        and any(node.allocatable.get(pool.spec.gpu_resource) for pool in pools)
    ]
    if outside:
        yield Warned(
            message=f"{some(outside)} offer GPUs but belong to no pool, so no job uses them",
            fix="give them the labels of a pool, or leave them to other users",
        )


def _pool(pool: PoolFact, members: Sequence[NodeFact]) -> Result:
    """Return whether the nodes of a pool have GPUs of one kind."""
    resource = pool.spec.gpu_resource
    without = [
        node.name
        for node in members
        # A pool with DRA devices has no countable resource on its nodes.
        if not node.allocatable.get(resource) and pool.spec.devices is None
    ]
    products = {
        node.labels[label] for node in members for label in PRODUCTS if label in node.labels
    }
    total = sum(node.allocatable.get(resource, 0) for node in members)
    # Three findings by severity of the cause: no nodes, no GPUs, mixed GPUs.
    if not members:
        return Warned(
            message=no_nodes(pool=pool.name, selector=_selector(pool.spec.node_selector)),
            fix=f"label nodes ({_selector(pool.spec.node_selector)}) or fix nodeSelector",
        )
    if without:
        return CheckFailed(
            message=nodes_offer_none(
                pool=pool.name, nodes=without, count=len(members), resource=resource
            ),
            fix="see the check GPUs, or narrow the pool's nodeSelector",
        )
    # A gang trains in lockstep, so the slowest GPU sets the pace.
    if len(products) > 1:
        return Warned(
            message=f"{pool.name}: its GPUs differ ({some(products)}); a gang can get both"
            " kinds, and then trains at the pace of the slower one",
            fix=f"create a GpuPool for each kind, with {' or '.join(PRODUCTS)} in its nodeSelector",
        )
    kind = f", {some(products)}" if products else ""
    return Passed(
        message=f"{pool.name}: {many(len(members), 'node')} with {many(total, 'GPU')}{kind}"
    )


def topology(pools: tuple[PoolFact, ...], nodes: tuple[NodeFact, ...]) -> Iterator[Result]:
    """Check whether nodes have labels for their place in the network."""
    levels = [(pool, level) for pool in pools for level in pool.spec.topology_levels or ()]
    # A pool without levels is valid. Its gangs ignore the network.
    if not levels:
        yield Passed(message="no pool defines levels of its network")
        return
    for pool, level in levels:
        members = members_of(pool, nodes)
        # A node without the label cannot join a domain, so gangs with a required level skip it.
        lacking = [node.name for node in members if level.node_label not in node.labels]
        if lacking:
            yield CheckFailed(
                message=nodes_lack_label(
                    pool=pool.name,
                    nodes=lacking,
                    count=len(members),
                    level=level.name,
                    label=level.node_label,
                ),
                fix=f"label them: kubectl label node {lacking[0]} {level.node_label}=...",
            )
        else:
            domains = {node.labels[level.node_label] for node in members}
            yield Passed(
                message=f"{pool.name}: {many(len(domains), 'domain')} of level {level.name}"
            )


def clocks(clocks: tuple[NodeClock, ...]) -> Iterator[Result]:
    """Check whether nodes and the API server agree on the time."""
    if not clocks:
        yield Passed(message="no node has renewed a Lease with a time")
        return
    # Two limits: a warning about wrong times, and a failure about missed terminations.
    far = [clock for clock in clocks if abs(clock.ahead_seconds) > AHEAD_LIMIT_SECONDS]
    off = [
        clock
        for clock in clocks
        if AHEAD_WARNING_SECONDS < abs(clock.ahead_seconds) <= AHEAD_LIMIT_SECONDS
    ]
    fix = (
        "run chrony or systemd-timesyncd there; in a virtual machine, synchronize with the"
        " host's clock"
    )
    if far:
        yield CheckFailed(
            message=f"clocks relative to the API server's: {_described(far)}; the announced end"
            " of such a node is noticed too late or never",
            fix=fix,
        )
    if off:
        yield Warned(
            message=f"clocks relative to the API server's: {_described(off)}; times of incidents"
            " are wrong by this amount",
            fix=fix,
        )
    if not far and not off:
        # One second is the precision of the measurement.
        widest = max(abs(clock.ahead_seconds) for clock in clocks)
        yield Passed(
            message=f"{many(len(clocks), 'node')} within {duration(max(widest, 1))} of the API"
            " server"
        )


def members_of(pool: PoolFact, nodes: Iterable[NodeFact]) -> list[NodeFact]:
    """Return the nodes that a pool selects."""
    wanted = pool.spec.node_selector.items()
    # A selector matches if its pairs are a subset of the labels.
    return [node for node in nodes if wanted <= node.labels.items()]


def _overlap(pool: PoolFact, rivals: list[str]) -> Warned:
    return Warned(
        message=f"{pool.name}: {some(rivals)} also select nodes of it; each of these nodes"
        " belongs to the oldest pool. All of them have the condition Overlapping",
        fix="narrow the nodeSelector of one of them",
    )


def _rivals(pool: PoolFact, members: Iterable[NodeFact], pools: Iterable[PoolFact]) -> list[str]:
    """Return the names of other pools that select nodes of this one."""
    names = [
        other.name for other in pools if other.name != pool.name and members_of(other, members)
    ]
    return sorted(names)


def _vendor(resource: str) -> str | None:
    domain = resource.partition("/")[0]
    return domain if domain in VENDORS else None


def _labelled(node: NodeFact) -> set[str]:
    return {
        # An absent label and the text false mean the same.
        vendor
        for label, vendor in GPU_LABELS.items()
        if node.labels.get(label, "false") not in {"false", ""}
    }


def _described(clocks: Iterable[NodeClock]) -> str:
    return some(
        f"{clock.node} {duration(abs(clock.ahead_seconds))}"
        f" {'ahead' if clock.ahead_seconds > 0 else 'behind'}"
        for clock in clocks
    )


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _a_pool(nodes: Iterable[NodeFact]) -> str:
    """Return the command that makes a pool of what nodes say of themselves."""
    labels = (
        # The first label of any GPU node is a good guess for a selector.
        {label: node.labels[label]}
        for node in nodes
        for label in GPU_LABELS
        if _labelled(node) and label in node.labels
    )
    manifest = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "GpuPool",
        "metadata": {"name": "gpus"},
        "spec": {"nodeSelector": next(labels, {"nvidia.com/gpu.present": "true"})},
    }
    # A JSON manifest fits on one line, so users can paste the command.
    return f"kubectl apply -f - <<< '{json.dumps(manifest)}'"
