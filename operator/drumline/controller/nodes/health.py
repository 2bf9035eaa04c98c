"""The health of all nodes: judged every few seconds, stored in the statuses of GpuPools.

`evidence` gathers the reports of jobs and checks, and `scheduler.disruption.node_scores` judges
them. The scheduler's cache gets the result, and the usage reporter writes it. A new leader starts
from the written statuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from drumline.controller.job_events import EventAction
from drumline.controller.nodes.evidence import evidence_of
from drumline.controller.nodes.health_signals import (
    health_fields,
    health_of,
    news_of_checks,
    rules_of,
    set_standings,
    standings,
)
from drumline.controller.nodes.nodes import NodeCache
from drumline.kube.events import EventRecorder, Occurrence, Regarding, Severity
from drumline.kube.kinds import NODES
from drumline.lifecycle.model.job import Job
from drumline.telemetry import logs
from drumline.telemetry.metrics import Metrics
from drumline_api.gpupool import GpuPoolSpec
from drumline_contract import AgentStatus
from drumline_scheduler.disruption.node_scores import HealthByNode, NodeHealth, judged, sentence
from drumline_scheduler.model import Node

log = logs.get("drumline.controller.nodes.health")


class NodeHealthBook:
    """Evidence against nodes and the verdicts on them, by pool.

    Args:
        jobs: iterates over all jobs.
        pools: returns the spec of each GpuPool by its name.
        nodes: receives the standings, which the scheduler reads.
        status_of: returns the last status of a job's agents, by its uid.
        recorder: writes events about nodes.
        uid_of: returns the uid of a node by its name, or None if it is gone.
        wake_scheduler: called when a node's standing has changed.
        metrics: holds the gauge.
    """

    def __init__(
        self,
        *,
        jobs: Callable[[], Iterable[Job]],
        pools: Callable[[], Mapping[str, GpuPoolSpec]],
        nodes: NodeCache,
        status_of: Callable[[str], AgentStatus | None],
        recorder: EventRecorder,
        uid_of: Callable[[str], str | None],
        wake_scheduler: Callable[[], None],
        metrics: Metrics,
    ) -> None:
        self._jobs = jobs
        self._specs = pools
        self._nodes = nodes
        self._status_of = status_of
        self._recorder = recorder
        self._uid_of = uid_of
        self._wake_scheduler = wake_scheduler
        self._gauge = metrics.recovery.quarantined_nodes
        self._pools: dict[str, HealthByNode] = {}

    def restore(self, statuses: Mapping[str, Mapping[str, Any]], *, now: float) -> None:
        """Continue from the statuses of the pools, by pool name."""
        self._pools = {pool: health_of(status) for pool, status in statuses.items()}
        set_standings(self._nodes, standings(self._pools.values(), now=now))

    def look(self, nodes: Iterable[Node], *, now: float) -> None:
        """Gather the present evidence, and judge all pools again.

        Args:
            nodes: all nodes of pools.
            now: seconds since the epoch.
        """
        # Phase 1: the nodes of each pool that exists.
        names: dict[str, list[str]] = {pool: [] for pool in self._specs()}
        for node in nodes:
            if node.pool in names:
                names[node.pool].append(node.name)
        # Phase 2: evidence of jobs is gathered once. Checks are configured in each pool.
        from_jobs = evidence_of(self._jobs(), self._status_of, now=now)
        after: dict[str, HealthByNode] = {}
        self._gauge.clear()
        for pool, spec in self._specs().items():
            before, checks = self._pools.get(pool, {}), news_of_checks(spec)
            news = replace(checks, evidence=[*from_jobs, *checks.evidence])
            after[pool] = judged(before, news, rules=rules_of(spec, nodes=names[pool]), now=now)
            self._report_changes(before, after[pool])
            out = sum(known.quarantined_at is not None for known in after[pool].values())
            self._gauge.labels(gpu_pool=pool).set(out)
        # Phase 3: publish the verdicts. The scheduler wakes only if one of them changed.
        self._pools = after
        if set_standings(self._nodes, standings(after.values(), now=now)):
            self._wake_scheduler()

    def fields(self, pool: str) -> dict[str, Any]:
        """Return the fields of a pool's status about the health of its nodes."""
        return health_fields(self._pools.get(pool, {}))

    def _report_changes(self, before: HealthByNode, after: HealthByNode) -> None:
        for node in before.keys() | after.keys():
            old, new = before.get(node), after.get(node)
            was = old is not None and old.quarantined_at is not None
            if new is not None and new.quarantined_at is not None and not was:
                log.warning("node_quarantined", node=node, why=sentence(new))
                self._record(node, reason="NodeQuarantined", known=new, severity=Severity.WARNING)
            elif was and (new is None or new.quarantined_at is None):
                log.info("node_released", node=node)
                self._record(node, reason="NodeReleased", known=new, severity=Severity.NORMAL)

    def _record(
        self, node: str, *, reason: str, known: NodeHealth | None, severity: Severity
    ) -> None:
        uid = self._uid_of(node)
        if uid is None:
            return
        note = sentence(known) if known is not None else "no evidence is left"
        regarding = Regarding(resource=NODES, namespace="", name=node, uid=uid)
        self._recorder.record(
            Occurrence(
                regarding=regarding,
                reason=reason,
                action=EventAction.JUDGE,
                note=note,
                severity=severity,
            )
        )
