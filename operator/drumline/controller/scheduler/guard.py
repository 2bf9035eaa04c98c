"""Taint the nodes of guarded pools while a gang is promised places there.

`scheduler.guarded_nodes` decides which nodes are tainted and for how long. The promises are in the
jobs' statuses (`nominated`, and an `assignment` whose pods are not complete), so a new leader
removes the taints of an earlier one. Without guarded pools nothing is read or written, and the
operator has no right to patch a node.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import msgspec

from drumline.controller.state.cluster import ClusterCache
from drumline.kube import reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import Conflict, Forbidden, Invalid, KubeError, NotFound, NotLeader
from drumline.kube.kinds import NODES
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import members_of
from drumline.telemetry import logs
from drumline_api.base import TAINT_PROMISED
from drumline_api.conditions import Phase
from drumline_scheduler.decisions import Decisions
from drumline_scheduler.guarded_nodes import NodeGuard, hold_back
from drumline_scheduler.model import Gang

log = logs.get("drumline.controller.scheduler.guard")

LOOK_SECONDS: Final = 0.5
"""Time between two comparisons while nodes are tainted."""
WAITING_SECONDS: Final = 0.1
"""Time between two comparisons while a decision waits for its nodes to be guarded."""
RETRY_SECONDS: Final = 1.0
"""Pause after a refused write."""
_TAINT: Final = {"key": TAINT_PROMISED, "effect": "NoSchedule"}
MAX_NAMED: Final = 16
"""Most nodes in one log line."""


class _NodeVersion(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    resource_version: str


class _NodeTaints(msgspec.Struct, frozen=True):
    taints: list[dict[str, Any]] = []


class _NodeBody(msgspec.Struct, frozen=True):
    metadata: _NodeVersion
    spec: _NodeTaints = _NodeTaints()


_decode = msgspec.json.Decoder(_NodeBody).decode


class Guard:
    """Keeps the taints in line with the promises.

    Args:
        client: fenced client for the API server.
        state: the caches.
        pools: names of the guarded pools.
        clock: monotonic seconds.
        wake_scheduler: wakes the scheduler.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        state: ClusterCache,
        pools: frozenset[str],
        clock: Callable[[], float],
        wake_scheduler: Callable[[], None],
    ) -> None:
        self._client = client
        self._state = state
        self._pools = pools
        self._clock = clock
        self._wake_scheduler = wake_scheduler
        self._wake = asyncio.Event()
        self._nodes = NodeGuard()
        self._missed: frozenset[str] = frozenset()
        """Nodes whose missing taint held back a decision of the last cycle."""
        self._waited_for: frozenset[str] = frozenset()
        """Nodes of `_missed` that are still neither guarded nor given up."""
        self._given_up: frozenset[str] = frozenset()
        self._refused: set[str] = set()
        """Nodes for which the API server has just refused a write."""

    def hold_back(self, decisions: Decisions, *, pending: Iterable[Gang]) -> Decisions:
        """Return the decisions whose nodes are guarded. The scheduler is woken for the others."""
        if not self._pools:
            return decisions
        now = self._clock()
        secured = self._nodes.secured(now=now)
        # A decision without its taints would compete with kube-scheduler for the places.
        guarded = hold_back(
            decisions,
            pools=self._pools,
            secured=secured,
            groups={gang.uid: gang.group for gang in pending if gang.group},
        )
        self._nodes.want(guarded.nodes, now=now)
        self._missed = self._waited_for = guarded.nodes.difference(secured)
        self._wake.set()
        return guarded.decisions

    async def run(self) -> None:
        """Keep the taints in line with the promises. Returns at once without guarded pools.

        Raises:
            NotLeader: this process may not write any more.
        """
        while self._pools:
            wrote = await self.settle()
            if wrote is False:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            pause = WAITING_SECONDS if self._waited_for else LOOK_SECONDS
            is_idle = wrote is None and self._nodes.is_idle
            with suppress(TimeoutError):
                async with asyncio.timeout(None if is_idle else pause):
                    await self._wake.wait()
            self._wake.clear()

    async def settle(self) -> bool | None:
        """Write the taints that are due. Return whether all were written, None if none was due.

        Nodes of a decision that was held back stay wanted until it is decided again, however long
        writes and cycles take. The scheduler is woken once they are guarded, or cannot be.

        Raises:
            NotLeader: this process may not write any more.
        """
        # Phase 1: compare the taints with the promises.
        now = self._clock()
        self._nodes.want(self._missed, now=now)
        changes = self._nodes.changes(
            tainted=self._state.nodes.promised,
            promised=frozenset(self._promised()),
            now=now,
        )
        add = [name for name in changes.add if not self._state.nodes.is_gone(name)]
        # Phase 2: write the differences, all at once.
        written: list[bool] = []
        if add or changes.lift:
            log.debug(
                "promises_guarded",
                tainted=sorted(add)[:MAX_NAMED],
                lifted=sorted(changes.lift)[:MAX_NAMED],
            )
            written = await asyncio.gather(
                *(self._write(name, tainted=True) for name in add),
                *(self._write(name, tainted=False) for name in changes.lift),
            )
            self._nodes.refuse(self._refused.intersection(add), now=self._clock())
            self._refused.clear()
        # Phase 3: nodes that cannot be tainted no longer hold back decisions.
        not_guardable = self._nodes.not_guardable(now=now)
        if not_guardable - self._given_up:
            log.warning("promises_not_guarded", nodes=sorted(not_guardable)[:MAX_NAMED])
        self._given_up = not_guardable
        # Phase 4: wake the scheduler if a held-back decision can be made now.
        left = self._waited_for - self._nodes.secured(now=self._clock())
        if left != self._waited_for:
            self._waited_for = left
            self._wake_scheduler()
        return all(written) if written else None

    def _promised(self) -> Iterable[str]:
        """Yield the nodes of guarded pools on which a gang's pods are still missing. O(jobs)."""
        for job in self._state.jobs.all():
            nominated = job.status.nominated
            if nominated is not None and nominated.gpu_pool in self._pools and not job.finished:
                yield from nominated.node_names()
            assignment = job.status.assignment
            if assignment is not None and (
                job.status.phase is not Phase.RUNNING or assignment.joining
            ):
                yield from self._empty_places(job)

    def _empty_places(self, job: Job) -> Iterable[str]:
        assignment = job.status.assignment
        if assignment is None or job.finished:
            return ()
        guarded = [
            (member.index, member.node)
            for member in members_of(job.status)
            if (member.surplus_pool or assignment.gpu_pool) in self._pools
        ]
        if not guarded:
            return ()
        pods = self._state.pods.of(job.namespace, job.uid)
        there = Counter(
            pod.node for pod in pods if pod.holds_node and not (pod.terminating or pod.unbound)
        )
        lost = frozenset(assignment.lost or ())
        return (Counter(node for index, node in guarded if index not in lost) - there).keys()

    async def _write(self, name: str, *, tainted: bool) -> bool:
        """Add or remove the taint of one node. Return False if it must be tried again later.

        The node's taints are read first, because others write them too.
        """
        try:
            node = _decode(await reads.get(self._client, NODES, name=name))
            # Conditional on uid and version: a taint that somebody else adds meanwhile is not lost.
            taints = [each for each in node.spec.taints if each.get("key") != TAINT_PROMISED]
            if tainted == (len(taints) < len(node.spec.taints)):
                return True
            metadata = {
                "uid": node.metadata.uid,
                "resourceVersion": node.metadata.resource_version,
            }
            after = [*taints, _TAINT] if tainted else taints
            await writes.merge_patch(
                self._client,
                NODES,
                name=name,
                body={"metadata": metadata, "spec": {"taints": after or None}},
            )
        except NotLeader:
            raise
        except (NotFound, Conflict):
            return True  # the next look decides again
        except (KubeError, msgspec.MsgspecError) as error:
            if isinstance(error, (Forbidden, Invalid)):
                self._refused.add(name)
            log.warning("taint_not_written", node=name, error=str(error))
            return False
        return True
