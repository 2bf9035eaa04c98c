"""Admit workloads other than TrainingJobs once a cycle found places for them.

Writes are paced, so no cycle waits for them. `Workloads` assumes a cycle's decision until the watch
shows its writes. A pod loses our gate and gets the pool's node selector, so that it runs where it
is charged. All pods of a group are marked before the first loses its gate (`gated_pods`).

A decision that cannot be written is made again after `RETRY_SECONDS`. The delay doubles each time,
up to `MAX_RETRY_SECONDS`, and others may get its places meanwhile. An object that has changed since
the cycle is left as it is, because it may have more pods than there were places for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from drumline.controller.informers.specs import SpecCache
from drumline.controller.workloads.conversion import (
    ForeignWorkload,
    PlacesFound,
    foreign_workload,
    places_in,
    places_text,
)
from drumline.controller.workloads.events import WorkloadEvents
from drumline.controller.workloads.gated_pods import POD
from drumline.controller.workloads.resumed import resumed
from drumline.controller.workloads.suspension import QUEUE_STOPPED, WorkloadSuspension
from drumline.controller.workloads.workloads import PlacedWorkload, Workloads
from drumline.kube import reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import Conflict, KubeError, NotFound, NotLeader
from drumline.kube.kinds import PODS
from drumline.kube.placement import QUEUE_GATE
from drumline.kube.suspendable import decoder_for
from drumline.kube.views import Key, PodView
from drumline.telemetry import logs
from drumline_api.base import ANNOTATION_ADMITTED
from drumline_api.gpupool import GpuPoolSpec
from drumline_scheduler.decisions import Decisions
from drumline_scheduler.model import Gang

log = logs.get("drumline.controller.workloads.admission")

RETRY_SECONDS: Final = 5.0
MAX_RETRY_SECONDS: Final = 3600.0
MAX_FAILURES: Final = 10_000
"""Most workloads and pods whose failures are remembered."""
SEEN_SECONDS: Final = 30.0
"""Time for which the event of a written pod is awaited."""


class ChangedError(Exception):
    """The stored object differs from the one that a cycle decided about."""


class WorkloadAdmission:
    """Writes the cycles' decisions about workloads.

    Args:
        client: fenced client for the API server.
        pools: specs of the GpuPools.
        workloads: waiting and admitted workloads.
        events: writes events that users read.
        suspension: suspends admitted workloads again.
        seen: returns when a version of an object is part of the caches.
        wake_scheduler: wakes the scheduler.
        sleep: waits for the given seconds.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        pools: SpecCache[GpuPoolSpec],
        workloads: Workloads,
        events: WorkloadEvents,
        suspension: WorkloadSuspension,
        seen: Callable[..., Awaitable[None]],
        wake_scheduler: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._sleep = sleep
        self._client = client
        self._pools = pools
        self._workloads = workloads
        self._events = events
        self._suspension = suspension
        self._seen = seen
        self._wake_scheduler = wake_scheduler
        self._due: asyncio.Queue[Coroutine[Any, Any, None]] = asyncio.Queue()
        self._busy: set[str] = set()
        """Uids of workloads and pods with a write under way that no cycle decided."""
        self._failures: dict[str, int] = {}
        """Number of failed writes in a row, by uid."""

    def take(
        self, decisions: Decisions, *, pending: Iterable[Gang], stopped: Mapping[str, str]
    ) -> Decisions:
        """Process the decisions about workloads. Return the decisions about jobs.

        Args:
            decisions: decisions of a cycle.
            pending: all waiting gangs.
            stopped: queues whose workloads must leave, with the reason.
        """
        # Phase 1: workloads with places, and those that need none.
        is_workload = self._workloads.is_waiting
        placed = self._workloads.assume_placed(
            each for each in decisions.placed if is_workload(each.uid)
        )
        for workload in (*placed, *self._without_devices()):
            self._due.put_nowait(self._admit(workload))
        # Phase 2: pods of admitted groups that still have the gate, as after a crash.
        for pod in self._workloads.unreleased():
            if pod.uid not in self._busy:
                self._busy.add(pod.uid)
                self._due.put_nowait(self._release_pod(pod))
        # Phase 3: admitted workloads of stopped queues.
        for workload in self._workloads.resumed():
            if workload.queue in stopped and workload.uid not in self._busy:
                self._busy.add(workload.uid)
                self._due.put_nowait(self._suspend_again(workload, why=stopped[workload.queue]))
        # Phase 4: explain why the others wait.
        queues = {gang.uid: gang.queue for gang in pending}
        waiting = self._workloads.explain(decisions.blocked, queues=queues)
        for each in waiting:
            self._events.waits(each)
        self._events.keep_only({each.workload.uid for each in waiting})
        return replace(
            decisions,
            placed=tuple(each for each in decisions.placed if not is_workload(each.uid)),
            blocked=tuple(each for each in decisions.blocked if not is_workload(each.uid)),
        )

    async def run(self) -> None:
        """Write due admissions, each in its own task. Never returns.

        Raises:
            NotLeader: this process may not write any more.
        """
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(await self._due.get())

    def _without_devices(self) -> Iterable[PlacedWorkload]:
        for each in self._workloads.without_devices():
            if each.workload.uid not in self._busy:
                self._busy.add(each.workload.uid)
                yield each

    async def _release_pod(self, pod: PodView) -> None:
        """Release a pod whose group or workload was admitted before, perhaps by another leader."""
        text = pod.annotations.get(ANNOTATION_ADMITTED)
        places = None if text is None else places_in(text).get(POD)
        if await self._attempt(self._release(pod, places)):
            self._failures.pop(pod.uid, None)
        else:
            await self._sleep(self._pause(pod.uid))
        self._busy.discard(pod.uid)
        self._wake_scheduler()

    async def _suspend_again(self, workload: ForeignWorkload, *, why: str) -> None:
        await self._suspension.suspend(workload, reason=QUEUE_STOPPED, why=why)
        await self._sleep(RETRY_SECONDS)  # until the caches show it, it would be asked for again
        self._busy.discard(workload.uid)
        self._wake_scheduler()

    async def _admit(self, placed: PlacedWorkload) -> None:
        if await self._write(placed):
            self._failures.pop(placed.workload.uid, None)
        else:
            pause = self._pause(placed.workload.uid)
            # the first time it was mostly changed by its owner a moment ago
            why = f"could not be admitted, retried after {pause:.0f} s; the operator logs the cause"
            self._workloads.settle(placed.workload, deferred=why if pause > RETRY_SECONDS else "")
            self._wake_scheduler()
            await self._sleep(pause)
        self._workloads.settle(placed.workload)
        self._busy.discard(placed.workload.uid)
        self._wake_scheduler()

    def _pause(self, uid: str) -> float:
        """Return the pause after another failed write, and count the failure."""
        failures = self._failures.pop(uid, 0)
        while len(self._failures) >= MAX_FAILURES:
            del self._failures[next(iter(self._failures))]
        self._failures[uid] = failures + 1
        return min(MAX_RETRY_SECONDS, RETRY_SECONDS * 2.0 ** min(failures, 16))

    async def _write(self, placed: PlacedWorkload) -> bool:
        """Write an admission. Return whether all of it was written and the caches show it."""
        if placed.is_object:
            return await self._attempt(self._resume(placed))
        pods = [
            (pod, places)
            for name, same_shape in placed.pods.items()
            for pod, places in _with_places(same_shape, placed.places.get(name))
        ]
        # Mark all pods of a group first (see `gated_pods`). One that has started is marked.
        if len(pods) > 1 and not placed.workload.has_started:
            marks = [self._attempt(self._patch(pod, places)) for pod, places in pods]
            if not all(await asyncio.gather(*marks)):
                return False
        releases = [self._attempt(self._release(pod, places)) for pod, places in pods]
        if not all(await asyncio.gather(*releases)):
            return False
        self._note(placed, pods=len(pods))
        return True

    def _note(self, placed: PlacedWorkload, *, pods: int) -> None:
        workload = placed.workload
        pool = next((each.pool for each in placed.places.values()), "")
        self._events.admitted(workload, pool=pool)
        log.info("workload_let_go", workload=workload.key, gpu_pool=pool, pods=pods)

    async def _resume(self, placed: PlacedWorkload) -> None:
        """Resume a Job or JobSet, if it is as the cycle saw it."""
        # Phase 1: read the object. More pods than decided about would run without quota.
        about = placed.workload.regarding
        stored = await reads.get(
            self._client, about.resource, name=about.name, namespace=about.namespace
        )
        view = decoder_for(about.resource)(stored)
        if view.uid != about.uid or not view.suspended:
            return
        if foreign_workload(about.resource, view).shapes != placed.workload.shapes:
            raise ChangedError(f"{placed.workload.key} has changed since the decision")
        # Phase 2: write it, conditional on the version that was read.
        body = resumed(
            msgspec.json.decode(stored),
            resource=about.resource,
            places=placed.places,
            pools=self._pools.by_name,
        )
        if body is None:
            return
        written = await writes.replace(
            self._client, about.resource, name=about.name, namespace=about.namespace, body=body
        )
        # Phase 3: wait for the event. Until then the decision is assumed, and must not be dropped.
        async with asyncio.timeout(SEEN_SECONDS):
            key = Key(about.namespace, about.name)
            await self._seen(about.resource, key, version=written.resource_version)
        self._note(placed, pods=sum(shape.pods for shape in placed.workload.shapes))

    async def _release(self, pod: PodView, places: PlacesFound | None) -> None:
        """Remove our gate. The pod is charged in the pool, so it must run there."""
        spec: dict[str, Any] = {"schedulingGates": [{"$patch": "delete", "name": QUEUE_GATE}]}
        pool = self._pools.get(places.pool) if places else None
        if pool is not None:
            spec["nodeSelector"] = dict(pool.node_selector)
        written = await self._patch(pod, places, spec=spec)
        async with asyncio.timeout(SEEN_SECONDS):
            key = Key(pod.namespace, pod.name)
            await self._seen(PODS, key, version=written.resource_version)

    async def _patch(
        self, pod: PodView, places: PlacesFound | None, **changes: Any
    ) -> writes.Written:
        text = places_text({} if places is None else {POD: places})
        metadata = {"uid": pod.uid, "annotations": {ANNOTATION_ADMITTED: text}}
        return await writes.strategic_patch(
            self._client,
            PODS,
            name=pod.name,
            namespace=pod.namespace,
            body={"metadata": metadata, **changes},
        )

    async def _attempt(self, write: Awaitable[object]) -> bool:
        """Return whether a write succeeded, or is not needed any more."""
        try:
            await write
        except NotLeader:
            raise
        except (NotFound, Conflict):  # the pod is gone, perhaps with a successor of its name
            return True
        except (KubeError, TimeoutError, ChangedError) as error:
            log.warning("workload_not_let_go", error=str(error))
            return False
        except Exception as error:  # what no schema checks of one must not end the leader
            log.exception("workload_not_let_go", error=str(error))
            return False
        return True


def _with_places(
    pods: Sequence[PodView], places: PlacesFound | None
) -> Iterable[tuple[PodView, PlacesFound | None]]:
    names = iter(places.node_names(most=len(pods)) if places else ())
    for pod in pods:
        name = next(names, None)
        yield pod, PlacesFound(pool=places.pool, nodes={name: 1}) if places and name else None
