"""What else acts on the cluster: autoscalers, other schedulers, monitoring."""

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
"""By the API group that it brings."""
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
    """Whether an autoscaler may take nodes, and whether the pools ask it for any."""
    served = {group.partition("/")[0] for group in groups}
    present = {name for group, name in AUTOSCALERS.items() if group in served}
    if any("karpenter.sh/nodepool" in node.labels for node in nodes):
        present.add(AUTOSCALERS["karpenter.sh"])
    if not present:
        yield Passed(message="none has an API here; the nodes are those that stand")
        return
    still = [pool.name for pool in pools if pool.spec.autoscaling is None]
    if pools and not still:
        yield Passed(message=f"{some(present)}: every pool asks for the nodes that jobs wait for")
        return
    yield Warned(
        message=f"{some(present)}: nodes of running jobs are kept (do-not-disrupt, budgets), but"
        f" none is asked for jobs that wait ({some(still) if still else 'there is no GpuPool'})",
        fix="write spec.autoscaling into these GpuPools (docs/autoscaling.md), or keep their nodes"
        " at the size that jobs may use (minimum size of the group, or a static NodePool)",
    )


def schedulers(
    pods: tuple[DevicePod, ...],
    pools: tuple[PoolFact, ...],
    nodes: tuple[NodeFact, ...],
    groups: frozenset[str],
) -> Iterator[Result]:
    """Whether somebody else places pods on the GPUs of Drumline's pools."""
    foreign = False
    for pool in pools:
        resource = pool.spec.gpu_resource
        members = {node.name for node in members_of(pool, nodes)}
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
                message=f"{pool.name}: {many(held, 'GPU')} are held by pods that Drumline did not"
                f" place: {some(f'{pod.namespace}/{pod.name}' for pod in holders)} (by"
                f" {some(by_whom)}). They are counted as used, and the queue that their label"
                " drumline.dev/queue names pays for them, if any (docs/sharing.md); a race for the"
                " same GPU ends in a pod that its kubelet refuses",
                fix="taint the pool's nodes, kubectl taint node -l KEY=VALUE"
                " drumline.dev/pool=true:NoSchedule, and let training pods tolerate it:"
                ' --set-json trainerPod.tolerations=\'[{"key":"drumline.dev/pool"}]\'',
            )
    beside = {
        name
        for group, name in SCHEDULERS.items()
        if group in {served.partition("/")[0] for served in groups}
    }
    if not foreign:
        seen = f"; {some(beside)} installed, too" if beside else ""
        yield Passed(message=f"nobody else's pods hold GPUs of the pools{seen}")


def monitoring(
    groups: frozenset[str],
    prometheuses: tuple[PrometheusFact, ...],
    monitors: tuple[MonitorFact, ...],
) -> Iterator[Result]:
    """Whether a Prometheus takes up Drumline's monitors: it drops others without a word."""
    if PROMETHEUS_GROUP not in groups:
        yield Passed(
            message="no Prometheus operator; ConfigMap drumline-prometheus has the scrapes"
        )
        return
    if not monitors:
        yield Warned(
            message="the Prometheus operator is here, and no monitor of Drumline",
            fix="helm upgrade ... --set metrics.serviceMonitor.enabled=true --set"
            " metrics.podMonitor.enabled=true --set metrics.rules.enabled=true",
        )
        return
    for monitor in monitors:
        takers = [
            prometheus
            for prometheus in prometheuses
            if _selects(prometheus.selectors.get(monitor.kind), monitor.labels)
        ]
        if takers:
            yield Passed(
                message=f"{monitor.kind} {monitor.name} is taken up by"
                f" {some(f'{taker.namespace}/{taker.name}' for taker in takers)}"
            )
        else:
            asked = {
                f"{key}={value}"
                for prometheus in prometheuses
                for key, value in (prometheus.selectors.get(monitor.kind) or {}).items()
            }
            wanted = f"it wants the label {some(asked)}" if asked else "none selects any"
            yield CheckFailed(
                message=f"{monitor.kind} {monitor.name} is taken up by no Prometheus: {wanted}",
                fix="set `labels` of it in the chart's values (metrics), or the Prometheus's"
                " selector",
            )


def _selects(selector: Labels | None, labels: Labels) -> bool:
    return selector is not None and selector.items() <= labels.items()
