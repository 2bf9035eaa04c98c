"""Execute the actions of a plan: create members, delete pods, push records, delete the job.

Actions are remembered (`job_memory`) only until the caches show them. Writes to the API server are
awaited. Messages to agents are only started here, because an agent may take long to answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from itertools import chain, islice
from typing import Any, Final

from drumline.controller.agents.client import AgentClient, AgentError, OtherMembersError
from drumline.controller.agents.deliveries import Deliveries
from drumline.controller.nodes.nodes import stuck_text
from drumline.controller.nodes.pod_conversion import event_of
from drumline.controller.nodes.pods import is_owned
from drumline.controller.reconciler.child_objects import ChildObjects, NoComputeDomains
from drumline.controller.reconciler.claims import ServesOneNode, any_node, prepare_claims
from drumline.controller.reconciler.events_pace import EventsPace
from drumline.controller.reconciler.job_memory import JobMemory
from drumline.controller.reconciler.orphan_sweep import JobIdentity, job_exists
from drumline.controller.reconciler.protection import Protection
from drumline.controller.reconciler.shared_objects import SharedObjects
from drumline.kube import codec, reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
)
from drumline.kube.events import events_about
from drumline.kube.kinds import (
    PODS,
    TRAINING_JOBS,
)
from drumline.kube.views import PodView
from drumline.lifecycle.manifests import children
from drumline.lifecycle.manifests.containers import with_limits
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.manifests.pods import pod_manifests
from drumline.lifecycle.model.conditions import is_true
from drumline.lifecycle.model.gang import reachable_agents
from drumline.lifecycle.model.hardware import PoolGpus
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import indices_by_pool
from drumline.lifecycle.model.observed import PodEvents, PodFacts
from drumline.lifecycle.model.signing_keys import SigningKeys
from drumline.lifecycle.plan.actions import (
    Action,
    CreateMembers,
    DeleteGenerations,
    DeleteJob,
    DeletePods,
    LabelPods,
    Notify,
    ProtectMembers,
    PushRecord,
    ReadPodEvents,
    RestoreChildren,
)
from drumline.lifecycle.plan.claims import ClaimUnusable, profile_claims
from drumline.lifecycle.plan.start_check import wants_limits
from drumline.telemetry import logs
from drumline_api.base import LABEL_GENERATION, LABEL_JOB_UID
from drumline_api.conditions import ConditionType
from drumline_contract import Notice

log = logs.get("drumline.controller.reconciler.executor")

AGENT_RETRY_SECONDS = 0.5
MAX_AGENT_RETRY_SECONDS = 8.0
TAKEN_NAME_RETRY_SECONDS = 0.5
NOTICE_TRIES = 3
"""Members to which a notice is sent before the next retry."""
MOST_LOOKS: Final = 4
"""Pods that are read at a time. Each takes a request, and a gang has up to 10,000 pods."""


class RetryLater(Exception):  # noqa: N818 - says when to look again; nothing went wrong
    """Reconcile this key again after `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class GangRejected(Exception):  # noqa: N818 - a verdict of the API server
    """The API server rejects these pods (a quota, Pod Security, a taken name). Has the reason."""


class StartRefused(Exception):  # noqa: N818 - a verdict about what the job names
    """No pod of this job can start, because of an object that the job names."""

    def __init__(self, unusable: ClaimUnusable) -> None:
        super().__init__(unusable.message)
        self.unusable = unusable


class Executor:
    """Executes actions.

    Args:
        client: fenced client for the API server.
        agents: client for the jobs' agents.
        deliveries: tasks that deliver records and notices to agents.
        pods: platform settings of pods.
        signing_keys: keys from which the jobs' tokens are derived.
        gpus_of: returns the GPUs of a pool, or None while the pool is not known.
        shared: the objects that all jobs of a namespace share.
        pods_of: returns the pods of a job in the cache.
        clock: seconds since the epoch.
        monotonic: monotonic seconds.
        is_stuck: returns whether a leaving pod should have been gone some time ago.
        serves_one_node: tells a claim that several nodes cannot use at the same time.
        default_class: returns the name of the cluster's default StorageClass, or ''.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        agents: AgentClient,
        deliveries: Deliveries,
        pods: PodSettings,
        signing_keys: SigningKeys,
        gpus_of: Callable[[str], PoolGpus | None],
        shared: SharedObjects,
        pods_of: Callable[[Job], Collection[PodFacts]],
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        is_stuck: Callable[[PodView], bool],
        serves_one_node: ServesOneNode = any_node,
        default_class: Callable[[], str] = str,
    ) -> None:
        self._serves_one_node = serves_one_node
        self._default_class = default_class
        self._pods_of = pods_of
        self._client = client
        self._agents = agents
        self._deliveries = deliveries
        self._pods = pods
        self._signing_keys = signing_keys
        self._gpus_of = gpus_of
        self._protection = Protection(client, pods_of=pods_of)
        self._children = ChildObjects(
            client, shared=shared, protection=self._protection, pods_of=pods_of, token=self.token
        )
        self._clock = clock
        self._monotonic = monotonic
        self._is_stuck = is_stuck
        self._events_pace = EventsPace()

    def token(self, job: Job) -> bytes:
        """Return the token by which this job's agents recognise their operator."""
        return children.job_token(self._signing_keys.of(job.status.signing_key), job.uid)

    async def act(self, job: Job, action: Action, memory: JobMemory) -> None:
        """Execute one action.

        Args:
            job: the job with its present status.
            action: what to do in the cluster.
            memory: what was recently done for this job.

        Raises:
            RetryLater: the action continues. Reconcile again.
            GangRejected: the API server rejects the pods.
            StartRefused: the pods could not start.
            KubeError: the API server did not execute the action.
        """
        # Every action is idempotent: after a crash or a change of leaders it is planned again.
        match action:
            case CreateMembers():
                await self._create_members(job, action.indices, memory)
            case DeleteGenerations():
                await self._delete_generations(job, action.generations, memory)
            case DeletePods():
                await self._delete_pods(job, action.pods, memory)
            case PushRecord():
                self._deliveries.start(
                    uid=job.uid,
                    key=job.key,
                    message=action.record,
                    deliver=lambda: self._push(job, action, memory),
                )
            case ProtectMembers():
                await self._protection.protect(job, action.evictable, memory)
                raise RetryLater(0.0)
            case LabelPods():
                await self._protection.label(job, action, memory, now=self._clock())
            case ReadPodEvents():
                await self._read_events(job, action.pods, memory)
            case RestoreChildren():
                await self._children.create(job, shared_budget=memory.shared_budget)
            case Notify():
                self._deliveries.start(
                    uid=job.uid,
                    key=job.key,
                    message=action.notice,
                    deliver=lambda: self._notify(job, action.notice, memory),
                )
            case DeleteJob():
                await self._delete_job(job)

    async def delete_orphans(self, job: JobIdentity) -> None:
        """Delete the pods of a deleted job. The garbage collector would take seconds longer."""
        # The jobs of a namespace that may not be read leave the cache, too: ask.
        if not await job_exists(self._client, job):
            await self._delete_where(f"{LABEL_JOB_UID}={job.uid}", namespace=job.namespace)

    async def _create_members(self, job: Job, indices: tuple[int, ...], memory: JobMemory) -> None:
        # Phase 1: claims, once per generation. A start that cannot work must create no pod.
        generation = job.status.generation or 0
        grows = is_true(job.status, ConditionType.RUNNING)  # its members use the claims already
        if memory.claims_generation != generation and not grows:
            gpus = map(self._gpus_of, indices_by_pool(job.status, indices))
            unusable = await prepare_claims(
                self._client,
                job,
                serves_one_node=self._serves_one_node,
                of_pods=chain.from_iterable(profile_claims(each.profile) for each in gpus if each),
                default_class=self._default_class(),
            )
            if unusable is not None:
                raise StartRefused(unusable)
            memory.claims_generation = generation
        # Phase 2: objects that pods need, once per generation, then the pods.
        try:
            if memory.children_generation != generation:
                memory.shared_budget = self._protection.is_shared(job)
                await self._children.create(job, shared_budget=memory.shared_budget)
                memory.children_generation = generation
            await self._create_pods(job, indices, memory)
        except (Forbidden, Invalid) as error:
            raise GangRejected(error.message) from error
        except NoComputeDomains as error:
            raise GangRejected(str(error)) from error

    async def _create_pods(self, job: Job, indices: tuple[int, ...], memory: JobMemory) -> None:
        # Phase 1: the manifests. A gang with a surplus has members in two pools.
        manifests: list[dict[str, Any]] = []
        own_budget = not memory.shared_budget
        for pool, own in indices_by_pool(job.status, indices).items():
            gpus = self._gpus_of(pool)
            if gpus is None:
                raise RetryLater(1.0)
            manifests += pod_manifests(
                job, indices=own, gpus=gpus, settings=self._pods, own_budget=own_budget
            )
        # Phase 2: create. Names count as expected before the request: the watch may be faster than
        # the answer, and a request without an answer may have created its pods.
        names: list[str] = [manifest["metadata"]["name"] for manifest in manifests]
        memory.unseen |= dict.fromkeys(names, self._clock())
        outcomes = await self._create_all(manifests, namespace=job.namespace)
        errors = {
            name: outcome
            for name, outcome in zip(names, outcomes, strict=True)
            if isinstance(outcome, KubeError)
        }
        # The API server rejected these, so they are not expected.
        for name in errors:
            memory.unseen.pop(name, None)
        log.info(
            "pods_created",
            job=job.key,
            generation=job.status.generation,
            pods=len(names) - len(errors),
            failed=len(errors),
        )
        # Phase 3: raise the most important error. Check taken names last, because the pod with the
        # name is usually the member itself.
        _raise_worst(list(errors.values()))
        if errors:
            conflict = await name_conflict(
                self._client, namespace=job.namespace, names=errors, is_stuck=self._is_stuck
            )
            raise GangRejected(conflict) if conflict else RetryLater(TAKEN_NAME_RETRY_SECONDS)

    async def _create_all(
        self, manifests: list[dict[str, Any]], *, namespace: str
    ) -> list[writes.Written | KubeError]:
        """Create pods. Pods that a LimitRange's default limits reject get limits of their own."""
        # Two rounds at most: only the rejected pods are created again.
        create = writes.create_many
        outcomes = await create(self._client, PODS, bodies=manifests, namespace=namespace)
        refused = [
            position
            for position, outcome in enumerate(outcomes)
            if isinstance(outcome, Invalid) and wants_limits(outcome.message)
        ]
        limited = [with_limits(manifests[position]) for position in refused]
        again = await create(self._client, PODS, bodies=limited, namespace=namespace)
        for position, outcome in zip(refused, again, strict=True):
            outcomes[position] = outcome
        return outcomes

    async def _delete_generations(
        self, job: Job, generations: tuple[int, ...], memory: JobMemory
    ) -> None:
        """Delete the pods of these generations, with one request whatever their number.

        For a collection, the API server goes through all pods of the namespace, after its cache has
        caught up with etcd. So a single pod is deleted by its name. Pods that the cache does not
        show yet are planned for when it does.
        """
        # Pods that the cache shows as terminating, or that were deleted a moment ago, are left out.
        now = self._clock()
        shown = [pod for pod in self._pods_of(job) if pod.generation in generations]
        live = [pod for pod in shown if not pod.terminating]
        due = [pod for pod in live if not memory.is_deleted(pod.uid, now=now)]
        if len(due) == 1:
            await self._delete_pods(job, due, memory)
        if live and len(due) <= 1:
            return
        chosen = ",".join(str(generation) for generation in generations)
        log.info("pods_deleted", job=job.key, generations=chosen)
        selector = f"{LABEL_JOB_UID}={job.uid},{LABEL_GENERATION} in ({chosen})"
        await self._delete_where(selector, namespace=job.namespace)
        memory.note_deleted(due, now=now)

    async def _delete_where(self, label_selector: str, *, namespace: str) -> None:
        await writes.delete_collection(
            self._client, PODS, namespace=namespace, label_selector=label_selector
        )

    async def _delete_pods(self, job: Job, pods: Collection[PodFacts], memory: JobMemory) -> None:
        """Delete each pod by name, except those that were deleted a moment ago."""
        now = self._clock()
        due = [pod for pod in pods if not memory.is_deleted(pod.uid, now=now)]
        await asyncio.gather(*(self._delete_pod(job, pod) for pod in due))
        memory.note_deleted(due, now=now)

    async def _delete_pod(self, job: Job, pod: PodFacts) -> None:
        """Delete a pod with its grace period. On a dead node it stays until the node is gone."""
        log.info("pod_deleted", job=job.key, pod=pod.name, node=pod.node)
        # The uid protects a newer pod of the same name.
        with suppress(NotFound, Conflict):
            await writes.delete(
                self._client, PODS, name=pod.name, namespace=job.namespace, uid=pod.uid
            )

    async def _push(self, job: Job, action: PushRecord, memory: JobMemory) -> float:
        """Deliver a record. Return the seconds until the job must be reconciled."""
        record = action.record
        try:
            await self._agents.push(record, token=self.token(job))
        except OtherMembersError:
            memory.contradicted_generation = record.generation
            return 0.0
        except AgentError as error:
            return _retry_seconds(job, error, memory)
        memory.agent_failures = 0
        memory.acknowledged_generation = record.generation
        memory.notified = ""  # a new leader does not know a notice that still stands
        members = len(record.members)
        log.info("record_pushed", job=job.key, generation=record.generation, members=members)
        return 0.0

    async def _notify(self, job: Job, notice: Notice, memory: JobMemory) -> float:
        """Send the notice to the leader that the agents know, or to one of the next members.

        Returns the seconds until the job must be reconciled.
        """
        # Phase 1: a joining member may have the lowest index but does not lead yet, so wait until
        # the agents have reported the generation that they know.
        joining = job.status.assignment.joining if job.status.assignment else None
        if joining and not memory.known_generation:
            error = AgentError("no agent of the gang has reported yet, so its leader is unknown")
            return _retry_seconds(job, error, memory)
        # Phase 2: offer the notice to a few members. Each of them forwards it to the leader.
        pods = reachable_agents(job, self._pods_of(job), known=memory.known_generation)
        error = AgentError("no member has an address")
        for pod in pods[:NOTICE_TRIES]:
            try:
                await self._agents.notify(pod.ip, notice, token=self.token(job))
            except AgentError as failure:
                error = failure
            else:
                memory.agent_failures = 0
                withdrawn = notice.withdraw
                memory.notified = "" if withdrawn else notice.id
                memory.withdrawn = notice.id if withdrawn else ""
                log.info("notice_given", job=job.key, notice=notice.id, withdrawn=withdrawn)
                return 0.0
        return _retry_seconds(job, error, memory)

    async def _read_events(self, job: Job, pods: tuple[PodFacts, ...], memory: JobMemory) -> None:
        """Read the events of pods, one job at a time.

        Each read is expensive for the API server (`events_pace`). If RBAC forbids it, the pods have
        no events, and the status contains only what the pods show.
        """
        # Phase 1: take a time slot. Slots are handed out in order over all jobs.
        now = self._monotonic()
        if memory.events_slot is None:
            memory.events_slot = self._events_pace.slot(now)
        if now < memory.events_slot:
            raise RetryLater(memory.events_slot - now)
        memory.events_slot = None
        # Phase 2: forget the events of pods that are gone, then read.
        known = {pod.uid for pod in self._pods_of(job)}
        memory.pod_events = {
            uid: events for uid, events in memory.pod_events.items() if uid in known
        }
        for pod in pods:
            try:
                views = await events_about(self._client, namespace=job.namespace, uid=pod.uid)
            except Forbidden as error:
                log.warning("events_not_readable", job=job.key, error=error.message)
                views = []
            events = tuple(map(event_of, views))
            memory.pod_events[pod.uid] = PodEvents(read_at=self._clock(), events=events)
        self._events_pace.took(self._monotonic() - now)
        # Plan again at once, with the events.
        raise RetryLater(0.0)

    async def _delete_job(self, job: Job) -> None:
        log.info("job_time_to_live_over", job=job.key)
        with suppress(NotFound):
            await writes.delete(
                self._client, TRAINING_JOBS, name=job.name, namespace=job.namespace, uid=job.uid
            )


def _retry_seconds(job: Job, error: AgentError, memory: JobMemory) -> float:
    """Return the delay before an agent is tried again: exponential backoff."""
    steps = min(memory.agent_failures, 8)
    memory.agent_failures += 1
    delay = min(MAX_AGENT_RETRY_SECONDS, AGENT_RETRY_SECONDS * 2**steps)
    log.info("agent_push_failed", job=job.key, error=str(error), retry_in_seconds=delay)
    return delay


def _raise_worst(errors: list[KubeError]) -> None:
    """Raise the most important error: a rejection, then any other. Taken names raise nothing."""
    for error in errors:
        if isinstance(error, Forbidden | Invalid):
            raise error
    for error in errors:
        if not isinstance(error, AlreadyExists):
            raise error


async def name_conflict(
    client: KubeClient,
    *,
    namespace: str,
    names: Iterable[str],
    is_stuck: Callable[[PodView], bool],
) -> str | None:
    """Return why a member's pod cannot be created: its name is another owner's. None otherwise.

    Mostly the pod with that name is the member itself, created before a crash or by a write whose
    answer was lost. Or it is the leaving pod of a deleted job. The cache shows the first soon, and
    the second is gone soon. A pod of another owner may stay forever, and so may one that a
    finalizer or a dead node holds: pods of the next start have other names.

    Args:
        client: reads from the API server.
        namespace: namespace of the job.
        names: names of the member pods.
        is_stuck: returns whether a leaving pod should have been gone some time ago.

    Raises:
        KubeError: the API server did not answer.
    """
    for name in islice(names, MOST_LOOKS):
        try:
            pod = codec.pod(await reads.get(client, PODS, name=name, namespace=namespace))
        except (NotFound, codec.Undecodable):
            continue
        if not pod.terminating and not is_owned(pod):
            return (
                f"pod {name} already exists and does not belong to a TrainingJob: delete that"
                " pod, or rename one of the two"
            )
        if pod.terminating and is_stuck(pod):
            place = f" on node {pod.node_name}" if pod.node_name else ""
            return (
                f"pod {stuck_text(pod)}{place} was deleted, but it still exists and has the name"
                " of a new pod: remove its finalizers, or the Node if that is dead"
            )
    return None
