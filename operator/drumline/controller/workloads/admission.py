"""Lets workloads go that are no TrainingJobs once a cycle found places for them.

Writing goes at a pace of its own, so that no cycle waits for it: what a cycle decided is assumed by
`Workloads` until the watch shows what was written. A pod loses our gate and gets the pool's node
selector, so that it runs where it is charged. Of a group every pod is marked first (`gated_pods`).

What cannot be written is decided anew after `RETRY_SECONDS`, twice that the next time, up to
`MAX_RETRY_SECONDS`: others may have its places until then. An object that is not as the cycle saw
it is left as it is: it may have more pods than there were places for.
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
from drumline.controller.workloads.workloads import LetGo, Workloads
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
"""Workloads and pods whose failures are remembered."""
SEEN_SECONDS: Final = 30.0
"""So long an event of a written pod is waited for."""


class ChangedError(Exception):
    """What is stored is not what a cycle decided about."""


class WorkloadAdmission:
    """Carries out what cycles decided about workloads.

    Args:
        client: fenced writes to the API server.
        pools: the spec of each GpuPool by its name.
        workloads: what waits.
        events: what users read.
        suspension: suspends again what was let go.
        seen: returns when a version of an object of a kind is part of the caches.
        wake_scheduler: has the scheduler decide.
        sleep: waits so many seconds.
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
        """Uids of workloads and pods that are being let go without having been decided about."""
        self._failures: dict[str, int] = {}
        """By uid: how often in a row it could not be written."""

    def take(
        self, decisions: Decisions, *, pending: Iterable[Gang], stopped: Mapping[str, str]
    ) -> Decisions:
        """Take over what is decided about workloads; returns what is about jobs.

        Args:
            decisions: of a cycle.
            pending: all that waits.
            stopped: queues whose workloads have to leave, with the reason.
        """
        is_ours = self._workloads.is_waiting
        let_go = self._workloads.let_go(each for each in decisions.placed if is_ours(each.uid))
        for workload in (*let_go, *self._that_need_nothing()):
            self._due.put_nowait(self._let_go(workload))
        for pod in self._workloads.unreleased():
            if pod.uid not in self._busy:
                self._busy.add(pod.uid)
                self._due.put_nowait(self._release_alone(pod))
        for workload in self._workloads.resumed():
            if workload.queue in stopped and workload.uid not in self._busy:
                self._busy.add(workload.uid)
                self._due.put_nowait(self._take_back(workload, why=stopped[workload.queue]))
        queues = {gang.uid: gang.queue for gang in pending}
        waiting = self._workloads.explain(decisions.blocked, queues=queues)
        for each in waiting:
            self._events.waits(each)
        self._events.keep_only({each.workload.uid for each in waiting})
        return replace(
            decisions,
            placed=tuple(each for each in decisions.placed if not is_ours(each.uid)),
            blocked=tuple(each for each in decisions.blocked if not is_ours(each.uid)),
        )

    async def run(self) -> None:
        """Write what is due; never returns.

        Raises:
            NotLeader: this process may not write any more.
        """
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(await self._due.get())

    def _that_need_nothing(self) -> Iterable[LetGo]:
        for each in self._workloads.without_devices():
            if each.workload.uid not in self._busy:
                self._busy.add(each.workload.uid)
                yield each

    async def _release_alone(self, pod: PodView) -> None:
        """A pod whose group or workload was let go before, by this leader or an earlier one."""
        text = pod.annotations.get(ANNOTATION_ADMITTED)
        places = None if text is None else places_in(text).get(POD)
        if await self._attempt(self._release(pod, places)):
            self._failures.pop(pod.uid, None)
        else:
            await self._sleep(self._pause(pod.uid))
        self._busy.discard(pod.uid)
        self._wake_scheduler()

    async def _take_back(self, workload: ForeignWorkload, *, why: str) -> None:
        await self._suspension.suspend(workload, reason=QUEUE_STOPPED, why=why)
        await self._sleep(RETRY_SECONDS)  # until the caches show it, it would be asked for again
        self._busy.discard(workload.uid)
        self._wake_scheduler()

    async def _let_go(self, let_go: LetGo) -> None:
        if await self._write(let_go):
            self._failures.pop(let_go.workload.uid, None)
        else:
            pause = self._pause(let_go.workload.uid)
            # the first time it was mostly changed by its owner a moment ago
            why = f"could not be admitted, retried after {pause:.0f} s; the operator logs the cause"
            self._workloads.settle(let_go.workload, put_off=why if pause > RETRY_SECONDS else "")
            self._wake_scheduler()
            await self._sleep(pause)
        self._workloads.settle(let_go.workload)
        self._busy.discard(let_go.workload.uid)
        self._wake_scheduler()

    def _pause(self, uid: str) -> float:
        """For how long it is left alone, as it could not be written once more."""
        failures = self._failures.pop(uid, 0)
        while len(self._failures) >= MAX_FAILURES:
            del self._failures[next(iter(self._failures))]
        self._failures[uid] = failures + 1
        return min(MAX_RETRY_SECONDS, RETRY_SECONDS * 2.0 ** min(failures, 16))

    async def _write(self, let_go: LetGo) -> bool:
        """Whether all of it was let go, and the caches show it."""
        if let_go.is_object:
            return await self._attempt(self._resume(let_go))
        pods = [
            (pod, places)
            for name, alike in let_go.pods.items()
            for pod, places in _with_places(alike, let_go.places.get(name))
        ]
        if len(pods) > 1 and not let_go.workload.has_started:
            marks = [self._attempt(self._patch(pod, places)) for pod, places in pods]
            if not all(await asyncio.gather(*marks)):
                return False
        releases = [self._attempt(self._release(pod, places)) for pod, places in pods]
        if not all(await asyncio.gather(*releases)):
            return False
        self._note(let_go, pods=len(pods))
        return True

    def _note(self, let_go: LetGo, *, pods: int) -> None:
        workload = let_go.workload
        pool = next((each.pool for each in let_go.places.values()), "")
        self._events.admitted(workload, pool=pool)
        log.info("workload_let_go", workload=workload.key, gpu_pool=pool, pods=pods)

    async def _resume(self, let_go: LetGo) -> None:
        """Resume a Job or JobSet, if it is as the cycle saw it."""
        about = let_go.workload.regarding
        stored = await reads.get(
            self._client, about.resource, name=about.name, namespace=about.namespace
        )
        view = decoder_for(about.resource)(stored)
        if view.uid != about.uid or not view.suspended:
            return
        if foreign_workload(about.resource, view).shapes != let_go.workload.shapes:
            raise ChangedError(f"{let_go.workload.key} has changed since the decision")
        body = resumed(
            msgspec.json.decode(stored),
            resource=about.resource,
            places=let_go.places,
            pools=self._pools.by_name,
        )
        if body is None:
            return
        written = await writes.replace(
            self._client, about.resource, name=about.name, namespace=about.namespace, body=body
        )
        async with asyncio.timeout(SEEN_SECONDS):
            key = Key(about.namespace, about.name)
            await self._seen(about.resource, key, version=written.resource_version)
        self._note(let_go, pods=sum(shape.pods for shape in let_go.workload.shapes))

    async def _release(self, pod: PodView, places: PlacesFound | None) -> None:
        """Take our gate away; the pod is charged in the pool, so it has to run there."""
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
        """Whether it was written, or is not needed any more."""
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
    """Each pod with one of the places."""
    names = iter(places.node_names(most=len(pods)) if places else ())
    for pod in pods:
        name = next(names, None)
        yield pod, PlacesFound(pool=places.pool, nodes={name: 1}) if places and name else None
