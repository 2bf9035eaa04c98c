"""Check other components of the cluster: autoscalers, other schedulers, monitoring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from drumline_cli.doctor.checks.hardware import members_of
from drumline_cli.doctor.facts import (
    DevicePod,
    Labels,
    MonitorFact,
    NodeFact,
    PoolFact,
    PrometheusFact,
)
from drumline_cli.doctor.results import CheckFailed, Passed, Result, Warned, some
from drumline_cli.formatting import many

AUTOSCALERS: Final[Mapping[str, str]] = {
    "karpenter.sh": "Karpenter",
    "autoscaling.x-k8s.io": "cluster-autoscaler (ProvisioningRequest, CapacityBuffer)",
}
"""Autoscalers by their API group."""
SCHEDULERS: Final[Mapping[str, str]] = {
    "kueue.x-k8s.io": "Kueue",
    "scheduling.volcano.sh": "Volcano",
    "scheduling.run.ai": "KAI",
    "scheduling.x-k8s.io": "the coscheduling plugins",
}
"""Other schedulers of gangs, by the API group that each brings."""
PROMETHEUS_GROUP: Final = "monitoring.coreos.com/v1"


def autoscalers(
    groups: frozenset[str], nodes: tuple[NodeFact, ...], pools: tuple[PoolFact, ...]
) -> Iterator[Result]:
    """Check whether an autoscaler may remove nodes, and whether the pools request nodes.

    Args:
        groups: API groups that the cluster serves.
        nodes: nodes of the cluster.
        pools: GpuPools of the cluster.
    """
    served = {group.partition("/")[0] for group in groups}
    present = {name for group, name in AUTOSCALERS.items() if group in served}
    # Managed Karpenter may hide its API group, but it labels its nodes.
    if any("karpenter.sh/nodepool" in node.labels for node in nodes):
        present.add(AUTOSCALERS["karpenter.sh"])
    if not present:
        yield Passed(message="no autoscaler with a supported API; the number of nodes is fixed")
        return
    # Such a pool never grows, so its jobs wait for nodes that nobody adds.
    still = [pool.name for pool in pools if pool.spec.autoscaling is None]
    if pools and not still:
        yield Passed(message=f"{some(present)}: every pool requests the nodes that jobs wait for")
        return
    yield Warned(
        message=f"{some(present)}: nodes of running jobs are protected (do-not-disrupt, budgets),"
        " but no nodes are requested for pending jobs"
        f" ({some(still) if still else 'there is no GpuPool'})",
        fix="set spec.autoscaling in these GpuPools (docs/autoscaling.md), or fix their number"
        " of nodes (minimum size of the group, or a static NodePool)",
    )


def schedulers(
    pods: tuple[DevicePod, ...],
    pools: tuple[PoolFact, ...],
    nodes: tuple[NodeFact, ...],
    groups: frozenset[str],
) -> Iterator[Result]:
    """Check whether other schedulers place pods on the GPUs of Drumline's pools.

    Args:
        pods: Pods that hold devices.
        pools: GpuPools of the cluster.
        nodes: nodes of the cluster.
        groups: API groups that the cluster serves.
    """
    foreign = False
    for pool in pools:
        resource = pool.spec.gpu_resource
        members = {node.name for node in members_of(pool, nodes)}
        # Pods of a DaemonSet run on every node, and ours are expected.
        holders = [
            pod
            for pod in pods
            if pod.node in members and pod.requests.get(resource) and not (pod.ours or pod.daemon)
        ]
        if holders:
            foreign = True
            held = sum(pod.requests[resource] for pod in holders)
            by_whom = {pod.scheduler for pod in holders}
            yield Warned(
                message=f"{pool.name}: pods that Drumline did not place hold {many(held, 'GPU')}:"
                f" {some(f'{pod.namespace}/{pod.name}' for pod in holders)} (by"
                f" {some(by_whom)}). They count as used. The queue of their label"
                " drumline.dev/queue pays for them, if they have one (docs/sharing.md)."
                " If two schedulers assign the same GPU, the kubelet rejects one pod",
                fix="taint the pool's nodes, kubectl taint node -l KEY=VALUE"
                " drumline.dev/pool=true:NoSchedule, and let training pods tolerate the"
                ' taint: --set-json trainerPod.tolerations=\'[{"key":"drumline.dev/pool"}]\'',
            )
    # Another scheduler is allowed. It matters only if it places pods on these nodes.
    beside = {
        name
        for group, name in SCHEDULERS.items()
        if group in {served.partition("/")[0] for served in groups}
    }
    if not foreign:
        seen = f"; {some(beside)} installed, too" if beside else ""
        yield Passed(message=f"no other pods hold GPUs of the pools{seen}")


def monitoring(
    groups: frozenset[str],
    prometheuses: tuple[PrometheusFact, ...],
    monitors: tuple[MonitorFact, ...],
) -> Iterator[Result]:
    """Check whether a Prometheus selects Drumline's monitors. It ignores others silently.

    Args:
        groups: API groups that the cluster serves.
        prometheuses: Prometheus objects with their selectors.
        monitors: Drumline's monitors and rules.
    """
    # Without the operator's CRDs there are no monitors to check.
    if PROMETHEUS_GROUP not in groups:
        yield Passed(
            message="no Prometheus operator; ConfigMap drumline-prometheus contains the scrape"
            " configuration"
        )
        return
    if not monitors:
        yield Warned(
            message="the Prometheus operator is installed, but no monitor of Drumline",
            fix="helm upgrade ... --set metrics.serviceMonitor.enabled=true --set"
            " metrics.podMonitor.enabled=true --set metrics.rules.enabled=true",
        )
        return
    for monitor in monitors:
        # A monitor without a matching selector is ignored silently.
        takers = [
            prometheus
            for prometheus in prometheuses
            if _selects(prometheus.selectors.get(monitor.kind), monitor.labels)
        ]
        if takers:
            yield Passed(
                message=f"{monitor.kind} {monitor.name} is selected by"
                f" {some(f'{taker.namespace}/{taker.name}' for taker in takers)}"
            )
        else:
            # The existing selectors show which label is missing.
            asked = {
                f"{key}={value}"
                for prometheus in prometheuses
                for key, value in (prometheus.selectors.get(monitor.kind) or {}).items()
            }
            wanted = (
                f"Prometheus selects the label {some(asked)}"
                if asked
                else ("no Prometheus selects monitors")
            )
            yield CheckFailed(
                message=f"no Prometheus selects {monitor.kind} {monitor.name}: {wanted}",
                fix="set its `labels` in the chart's values (metrics), or change the"
                " Prometheus's selector",
            )


def _selects(selector: Labels | None, labels: Labels) -> bool:
    return selector is not None and selector.items() <= labels.items()
