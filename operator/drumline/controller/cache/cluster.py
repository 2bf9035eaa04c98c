"""The cluster as the scheduler sees it, kept up to date by the informers' events.

The informers' caches are the truth; this adds what is derived from them (use of each node, pods of
each job) incrementally, and the *assumed* versions: our own writes are visible here before the
watch shows them, until it does. Nothing is assumed that was not acknowledged by the API server.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from drumline.api.base import LABEL_JOB, LABEL_JOB_UID
from drumline.api.gpupool import GpuPoolSpec
from drumline.api.load import ApiError, parse
from drumline.api.trainingqueue import TrainingQueueSpec
from drumline.controller.cache.nodes import NodeCache
from drumline.controller.conversion.admitted import Places, admitted_of, holds_places, places_of
from drumline.controller.conversion.jobs import facts_of, gang_of, job_of, queue_of
from drumline.controller.conversion.nodes import pool_of
from drumline.kube.views import ObjectView, PodView, PriorityClassView
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import PodFacts
from drumline.lifecycle.plan.eligibility import is_queued
from drumline.scheduling.model import Admitted, Gang, Snapshot, Toleration
from drumline_trainer.contract import Progress

RISK_SECONDS = 60.0
"""How old the figure of what a job's leaving would lose may be."""
Spec = TypeVar("Spec", GpuPoolSpec, TrainingQueueSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """A job whose pods the API server refused: not before `until`, because of `cause`."""

    until: float
    cause: str
    count: int


class ClusterCache:
    """Everything the scheduler loop and the reconciler look up. For one event loop.

    `on_*` methods are the informers' subscribers; `None` as the new view means deleted.

    Args:
        nodes: the nodes and what runs there.
        progress: what a job's agents said last of their training, by the job's uid.
        platform_tolerations: what the platform adds to pods of the bundled trainer.
    """

    def __init__(
        self,
        *,
        nodes: NodeCache,
        progress: Callable[[str], Progress | None] = lambda _: None,
        platform_tolerations: tuple[Toleration, ...] = (),
    ) -> None:
        self.nodes = nodes
        self._progress = progress
        self._platform_tolerations = platform_tolerations
        self._jobs: dict[str, Job] = {}
        self._assumed: dict[str, Job] = {}
        self._members: dict[tuple[str, str], dict[str, PodFacts]] = defaultdict(dict)
        self._pools: dict[str, GpuPoolSpec] = {}
        self._queues: dict[str, TrainingQueueSpec] = {}
        self._priorities: dict[str, int] = {}
        self._default_priority = 0
        self._gangs: dict[str, tuple[str, Gang]] = {}
        self._places_of: dict[str, tuple[str, Places]] = {}
        self._held: dict[str, tuple[tuple[object, ...], Admitted]] = {}
        self._pod_events: Counter[tuple[str, str]] = Counter()
        self.backoffs: dict[str, Backoff] = {}
        self.left_out: dict[str, str] = {}
        """Jobs no gang can be made of, with the reason; emptied by whoever tells of them."""
        self._gone: dict[str, set[str]] = defaultdict(set)

    # --- what the informers say -------------------------------------------------------------

    def on_job(self, old: ObjectView | None, new: ObjectView | None) -> str | None:
        """Take a TrainingJob in; returns why it cannot be read, if so."""
        if new is None:
            if old is not None:
                self._forget_job(f"{old.namespace}/{old.name}", old.uid)
                self._gone[f"{old.namespace}/{old.name}"].add(old.uid)
            return None
        key = f"{new.namespace}/{new.name}"
        before = self._jobs.get(key)
        if before is not None and before.uid != new.uid:
            self._forget_job(key, before.uid)
            self._gone[key].add(before.uid)
        try:
            job = job_of(new)
        except ApiError as error:
            return str(error)
        known = self.job(key)
        self._jobs[key] = job
        assumed = self._assumed.get(new.uid)
        if assumed is not None and _at_least(new.resource_version, assumed.resource_version):
            del self._assumed[new.uid]
        self._places_changed(known, self.job(key))
        return None

    def on_pod(self, old: PodView | None, new: PodView | None) -> None:
        """Take a pod in: of ours by job, every one by node."""
        self.nodes.on_pod(old, new)
        if old is not None:
            self._forget_member(old)
        if new is None or new.labels.get(LABEL_JOB_UID) != new.owner_uid:
            return
        facts = facts_of(new)
        if facts is not None:
            self._members[new.namespace, new.owner_uid][new.uid] = facts
            self._pod_events[new.namespace, new.owner_uid] += 1

    def on_pool(self, old: ObjectView | None, new: ObjectView | None) -> str | None:
        """Take a GpuPool in; returns why it cannot be read, if so."""
        self.nodes.forget_offers()
        return _put(self._pools, old, new, GpuPoolSpec)

    def on_queue(self, old: ObjectView | None, new: ObjectView | None) -> str | None:
        """Take a TrainingQueue in; returns why it cannot be read, if so."""
        return _put(self._queues, old, new, TrainingQueueSpec)

    def on_priority_class(
        self, old: PriorityClassView | None, new: PriorityClassView | None
    ) -> None:
        """Take a PriorityClass in."""
        self._gangs.clear()
        if old is not None:
            self._priorities.pop(old.name, None)
            self._default_priority = 0 if old.global_default else self._default_priority
        if new is not None:
            self._priorities[new.name] = new.value
            self._default_priority = new.value if new.global_default else self._default_priority

    # --- what we did ourselves --------------------------------------------------------------

    def assume(self, job: Job) -> None:
        """Our own write was acknowledged: this is the job until the watch shows it or newer."""
        shown = self._jobs.get(job.key)
        if shown is None or shown.uid != job.uid:
            return
        if not _at_least(shown.resource_version, job.resource_version):
            self._places_changed(self.job(job.key), job)
            self._assumed[job.uid] = job

    def take_gone(self, key: str) -> set[str]:
        """The uids of deleted jobs of this name; told once."""
        return self._gone.pop(key, set())

    # --- look-ups ---------------------------------------------------------------------------

    def job(self, key: str) -> Job | None:
        """The newest version known of a job."""
        shown = self._jobs.get(key)
        return None if shown is None else self._assumed.get(shown.uid, shown)

    def jobs(self) -> Iterable[Job]:
        """The newest version known of every job."""
        return (self._assumed.get(job.uid, job) for job in self._jobs.values())

    def facts_of(self, namespace: str, uid: str) -> Collection[PodFacts]:
        """The pods of a job, of all generations; a pod of another namespace is never one."""
        return self._members.get((namespace, uid), {}).values()

    def pool_spec(self, name: str) -> GpuPoolSpec | None:
        """A pool's spec."""
        return self._pools.get(name)

    def priority_of(self, job: Job) -> int:
        """The value of its priority class; the global default without one."""
        name = job.spec.priority_class_name
        return self._default_priority if name is None else self._priorities.get(name, 0)

    # --- the scheduler's input --------------------------------------------------------------

    def snapshot(self, *, now: float) -> Snapshot:
        """The cluster now: O(nodes changed since the last one + admitted jobs)."""
        return Snapshot(
            nodes=tuple(self.nodes.offers(self._pools, leaves=self._leaves)),
            pools=tuple(pool_of(name, spec) for name, spec in self._pools.items()),
            queues=tuple(queue_of(name, spec) for name, spec in self._queues.items()),
            admitted=tuple(self._admitted(now=now)),
        )

    def pending(self) -> list[Gang]:
        """Every job that waits for a place and can be scheduled."""
        waiting = (job for job in self.jobs() if is_queued(job) and self._has_class(job))
        gangs = [gang for job in waiting if (gang := self._gang(job)) is not None]
        if any(gang.group for gang in gangs):
            return self._without_those_that_started(gangs)
        return gangs

    def _without_those_that_started(self, gangs: list[Gang]) -> list[Gang]:
        """Groups without the jobs that held places and hold none: nobody need wait for them."""
        over = Counter(
            (job.namespace, job.spec.group.name)
            for job in self.jobs()
            if job.spec.group is not None
            and job.status.generation is not None
            and job.status.assignment is None
        )
        started = {gang.uid: over[gang.namespace, gang.group] for gang in gangs if gang.group}
        return [
            replace(gang, group_gangs=max(1, gang.group_gangs - started[gang.uid]))
            if started.get(gang.uid)
            else gang
            for gang in gangs
        ]

    def queued_without_class(self) -> list[Job]:
        """Jobs that name a priority class that does not exist."""
        return [job for job in self.jobs() if not self._has_class(job) and is_queued(job)]

    def _has_class(self, job: Job) -> bool:
        name = job.spec.priority_class_name
        return name is None or name in self._priorities

    def _admitted(self, *, now: float) -> Iterable[Admitted]:
        for job in self.jobs():
            gang = self._gang(job) if holds_places(job) else None
            if gang is not None:
                yield self._held_by(job, gang, now=now)

    def _held_by(self, job: Job, gang: Gang, *, now: float) -> Admitted:
        """The same object as long as nothing changed: the scheduler knows it again by that.

        What its leaving would lose grows all the time; it is worked out anew once a while, and
        when its agents tell of another checkpoint.
        """
        pods_seen, progress = self._pod_events[job.namespace, job.uid], self._progress(job.uid)
        saved = progress.checkpoint_step if progress is not None else None
        stamp = (job.resource_version, pods_seen, saved, now // RISK_SECONDS)
        known = self._held.get(job.uid)
        if known is None or known[0] != stamp or known[1].gang is not gang:
            held = admitted_of(
                job,
                gang=gang,
                places=self._places(job),
                pods=self.facts_of(job.namespace, job.uid),
                progress=progress,
                now=now,
            )
            known = self._held[job.uid] = (stamp, held)
        return known[1]

    def _leaves(self, pod: PodView) -> bool:
        """Whether a pod of ours stands for no member any more: it is about to be deleted."""
        if LABEL_JOB_UID not in pod.labels or pod.labels[LABEL_JOB_UID] != pod.owner_uid:
            return False
        facts = self._members.get((pod.namespace, pod.owner_uid), {}).get(pod.uid)
        job = self.job(f"{pod.namespace}/{pod.labels.get(LABEL_JOB, '')}")
        if facts is None or job is None or job.uid != pod.owner_uid or not holds_places(job):
            return True
        return not self._places(job).stands(facts.index, facts.generation)

    def _places(self, job: Job) -> Places:
        known = self._places_of.get(job.uid)
        if known is None or known[0] != job.resource_version:
            known = self._places_of[job.uid] = (job.resource_version, places_of(job))
        return known[1]

    def _places_changed(self, before: Job | None, after: Job | None) -> None:
        """Nodes where pods may have become strays are looked at anew."""
        places = [job.status.assignment for job in (before, after) if job is not None]
        finished = [job.finished for job in (before, after) if job is not None]
        if len(places) == 2 and places[0] == places[1] and finished[0] == finished[1]:
            return
        for assignment in filter(None, places):
            self.nodes.revalue(assignment.node_names())

    def _gang(self, job: Job) -> Gang | None:
        """The scheduler's view of a job; None, and noted in `left_out`, where there can be none."""
        backoff = self.backoffs.get(job.uid)
        version = f"{job.resource_version}/{backoff.until if backoff else 0}"
        known = self._gangs.get(job.uid)
        if known is not None and known[0] == version:
            return known[1]
        try:
            gang = gang_of(
                job,
                priority=self.priority_of(job),
                platform_tolerations=self._platform_tolerations,
                retry_at=backoff.until if backoff else 0.0,
                retry_cause=backoff.cause if backoff else "",
            )
        except ValueError as error:  # one odd job must not stop the others
            self.left_out[job.key] = str(error)
            return None
        self._gangs[job.uid] = (version, gang)
        return gang

    def _forget_member(self, pod: PodView) -> None:
        gang = (pod.namespace, pod.owner_uid)
        members = self._members.get(gang)
        if members is not None:
            if members.pop(pod.uid, None) is not None:
                self._pod_events[gang] += 1
            if not members:
                del self._members[gang]

    def _forget_job(self, key: str, uid: str) -> None:
        if key in self._jobs and self._jobs[key].uid == uid:
            self._places_changed(self.job(key), None)
            del self._jobs[key]
        self._pod_events.pop((key.partition("/")[0], uid), None)
        for memory in (self._assumed, self._gangs, self._places_of, self._held, self.backoffs):
            memory.pop(uid, None)


def _at_least(shown: str, written: str) -> bool:
    """Whether a shown version is this write or a later one (comparable since Kubernetes 1.35)."""
    if shown.isdecimal() and written.isdecimal():
        return int(shown) >= int(written)
    return shown == written


def _put(
    specs: dict[str, Spec], old: ObjectView | None, new: ObjectView | None, model: type[Spec]
) -> str | None:
    """Keep the newest readable spec by name; an unreadable one leaves the last good one."""
    if new is None:
        if old is not None:
            specs.pop(old.name, None)
        return None
    try:
        specs[new.name] = parse(model, new.spec, at="spec")
    except ApiError as error:
        return str(error)
    return None
