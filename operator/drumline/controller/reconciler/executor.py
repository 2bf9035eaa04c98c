"""Doing what a plan says: create members, delete pods, tell the agents, delete the job.

What was done is remembered only until the caches show it; losing that memory (a restart) costs a
harmless 409, never a second pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from drumline.api.base import LABEL_GENERATION, LABEL_JOB_UID
from drumline.controller.agents.client import AgentClient, AgentError, OtherMembersError
from drumline.kube import writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
)
from drumline.kube.resources import (
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    SECRETS,
    TRAINING_JOBS,
    Resource,
)
from drumline.lifecycle.manifests import children
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.manifests.pods import pod_manifests
from drumline.lifecycle.model.gang import reachable_agents
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import PodFacts
from drumline.lifecycle.plan.actions import (
    Action,
    CreateMembers,
    DeleteGenerations,
    DeleteJob,
    DeletePods,
    Notify,
    ProtectMembers,
    PushRecord,
)
from drumline.telemetry import logs
from drumline_trainer.contract import Notice

log = logs.get("drumline.controller.reconciler.executor")

UNSEEN_SECONDS = 10.0
"""A pod created by us that the watch does not show within this time is created again."""
AGENT_RETRY_SECONDS = 0.5
MAX_AGENT_RETRY_SECONDS = 8.0
NAMESAKE_RETRY_SECONDS = 0.5
NOTICE_TRIES = 3
"""Members that are tried with a notice before it is put off."""


class RetryLater(Exception):  # noqa: N818 - says when to look again; nothing went wrong
    """Look at this key again after `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class GangRefused(Exception):  # noqa: N818 - a verdict of the API server
    """The API server will not have these pods (a quota, Pod Security, RBAC); says why."""


@dataclass(slots=True)
class Memory:
    """What is remembered of one job between two reconciles; all of it may be lost."""

    has_children: bool = False
    """Whether Secret and policy were made sure of: they outlive every generation."""
    unseen: dict[str, float] = field(default_factory=dict[str, float])
    """Pods created, by name, with the time: not shown by the watch yet."""
    protected: set[int] = field(default_factory=set[int])
    """Sizes of the job whose disruption budget was made sure of."""
    acknowledged_generation: int | None = None
    contradicted_generation: int | None = None
    heard_generation: int = 0
    """The newest that the agents spoke of."""
    notified: str = ""
    """Id of the notice that the agents have."""
    withdrawn: str = ""
    """Id of the notice that they were told to forget."""
    agent_failures: int = 0
    """Of pushes and notices, in a row."""
    figures_at: float | None = None
    written_at: float = 0.0
    """Our last status write."""

    @property
    def known_generation(self) -> int:
        """The newest that the agents were told, as far as we can tell."""
        return max(self.acknowledged_generation or 0, self.heard_generation)

    def unseen_at(self, now: float, *, shown: set[str]) -> frozenset[str]:
        """Names still to be expected; those shown or overdue are dropped."""
        self.unseen = {
            name: since
            for name, since in self.unseen.items()
            if name not in shown and now < since + UNSEEN_SECONDS
        }
        return frozenset(self.unseen)


class Executor:
    """Carries out actions.

    Args:
        client: fenced writes to the API server.
        agents: the way to the jobs' agents.
        pods: what the platform decides about pods.
        signing_key: what the jobs' tokens are derived from.
        gpu_resource: the GPU resource of a pool, None while the pool is unknown.
        pods_of: the pods of a job as the cache shows them.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        agents: AgentClient,
        pods: PodSettings,
        signing_key: bytes,
        gpu_resource: Callable[[str], str | None],
        pods_of: Callable[[Job], Iterable[PodFacts]],
        clock: Callable[[], float],
    ) -> None:
        self._pods_of = pods_of
        self._client = client
        self._agents = agents
        self._pods = pods
        self._signing_key = signing_key
        self._gpu_resource = gpu_resource
        self._clock = clock

    def token(self, job: Job) -> bytes:
        """What this job's agents know their operator by."""
        return children.job_token(self._signing_key, job.uid)

    async def act(self, job: Job, action: Action, memory: Memory) -> None:
        """Do one action.

        Raises:
            RetryLater: it is under way; look again.
            GangRefused: the API server refuses the pods.
            KubeError: the API server did not do it.
        """
        match action:
            case CreateMembers():
                await self._create_members(job, action.indices, memory)
            case DeleteGenerations():
                await self._delete_pods(job, action.generations)
            case DeletePods():
                await asyncio.gather(*(self._delete_stray(job, pod) for pod in action.pods))
            case PushRecord():
                await self._push(job, action, memory)
            case ProtectMembers():
                await self._protect(job, memory)
            case Notify():
                await self._notify(job, action.notice, memory)
            case DeleteJob():
                await self._delete_job(job)

    async def delete_orphans(self, *, namespace: str, job_uid: str) -> None:
        """Delete the pods of a deleted job: the garbage collector would, but seconds later."""
        await self._delete_where(f"{LABEL_JOB_UID}={job_uid}", namespace=namespace)

    async def _create_members(self, job: Job, indices: tuple[int, ...], memory: Memory) -> None:
        try:
            if not memory.has_children:
                await self._create_children(job)
                memory.has_children = True
            await self._create_pods(job, indices, memory)
        except (Forbidden, Invalid) as error:
            raise GangRefused(error.message) from error

    async def _create_children(self, job: Job) -> None:
        """Secret and policy: before any pod that needs or must be covered by them."""
        if job.has_agents:
            policy = children.network_policy(
                job,
                operator_namespace=self._pods.operator_namespace,
                metrics_from=self._pods.metrics_from,
            )
            secret = children.token_secret(job, self.token(job))
            await asyncio.gather(
                self._create_child(job, NETWORK_POLICIES, policy),
                self._create_child(job, SECRETS, secret),
            )

    async def _protect(self, job: Job, memory: Memory) -> None:
        budget = children.disruption_budget(job)
        await self._create_child(job, POD_DISRUPTION_BUDGETS, budget)
        memory.protected.add(job.spec.nodes)
        raise RetryLater(0.0)

    async def _create_child(self, job: Job, resource: Resource, body: writes.Body) -> None:
        with suppress(AlreadyExists):  # its name carries the job's uid: it is ours
            await writes.create(self._client, resource, body=body, namespace=job.namespace)

    async def _create_pods(self, job: Job, indices: tuple[int, ...], memory: Memory) -> None:
        pool = job.status.assignment.gpu_pool if job.status.assignment else ""
        gpu_resource = self._gpu_resource(pool)
        if gpu_resource is None:
            raise RetryLater(1.0)
        manifests = pod_manifests(
            job, indices=indices, gpu_resource=gpu_resource, settings=self._pods
        )
        names: list[str] = [manifest["metadata"]["name"] for manifest in manifests]
        memory.unseen |= dict.fromkeys(names, self._clock())
        outcomes = await writes.create_many(
            self._client, PODS, bodies=manifests, namespace=job.namespace
        )
        errors = {
            name: outcome
            for name, outcome in zip(names, outcomes, strict=True)
            if isinstance(outcome, KubeError)
        }
        for name in errors:
            memory.unseen.pop(name, None)
        log.info(
            "pods_created",
            job=job.key,
            generation=job.status.generation,
            pods=len(names) - len(errors),
            failed=len(errors),
        )
        _raise_worst(list(errors.values()))

    async def _delete_pods(self, job: Job, generations: tuple[int, ...]) -> None:
        chosen = ",".join(str(generation) for generation in generations)
        log.info("pods_deleted", job=job.key, generations=chosen)
        selector = f"{LABEL_JOB_UID}={job.uid},{LABEL_GENERATION} in ({chosen})"
        await self._delete_where(selector, namespace=job.namespace)

    async def _delete_where(self, label_selector: str, *, namespace: str) -> None:
        await writes.delete_collection(
            self._client, PODS, namespace=namespace, label_selector=label_selector
        )

    async def _delete_stray(self, job: Job, pod: PodFacts) -> None:
        """Gracefully: on a dead node it stays until somebody who knows says that it is gone."""
        log.info("stray_deleted", job=job.key, pod=pod.name, node=pod.node)
        with suppress(NotFound, Conflict):
            await writes.delete(
                self._client, PODS, name=pod.name, namespace=job.namespace, uid=pod.uid
            )

    async def _push(self, job: Job, action: PushRecord, memory: Memory) -> None:
        record = action.record
        try:
            await self._agents.push(record, token=self.token(job))
        except OtherMembersError:
            memory.contradicted_generation = record.generation
            raise RetryLater(0.0) from None
        except AgentError as error:
            raise _agent_later(job, error, memory) from None
        memory.agent_failures = 0
        memory.acknowledged_generation = record.generation
        memory.notified = ""  # its leader may be new, and has not heard a notice that still stands
        members = len(record.members)
        log.info("record_pushed", job=job.key, generation=record.generation, members=members)
        raise RetryLater(0.0)

    async def _notify(self, job: Job, notice: Notice, memory: Memory) -> None:
        """Tell the leader, or whoever comes after it, of the gang as its agents know it."""
        joining = job.status.assignment.joining if job.status.assignment else None
        if joining and not memory.known_generation:
            error = AgentError("the gang was not heard yet: its leader may be a new member or not")
            raise _agent_later(job, error, memory)
        pods = reachable_agents(job.status, self._pods_of(job), known=memory.known_generation)
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
                raise RetryLater(0.0)
        raise _agent_later(job, error, memory)

    async def _delete_job(self, job: Job) -> None:
        log.info("job_time_to_live_over", job=job.key)
        with suppress(NotFound):
            await writes.delete(
                self._client, TRAINING_JOBS, name=job.name, namespace=job.namespace, uid=job.uid
            )


def _agent_later(job: Job, error: AgentError, memory: Memory) -> RetryLater:
    """When to try an agent again: later and later."""
    steps = min(memory.agent_failures, 8)
    memory.agent_failures += 1
    delay = min(MAX_AGENT_RETRY_SECONDS, AGENT_RETRY_SECONDS * 2**steps)
    log.info("agent_not_told", job=job.key, error=str(error), retry_in_seconds=delay)
    return RetryLater(delay)


def _raise_worst(errors: list[KubeError]) -> None:
    """A refusal says most; then what may pass; a taken name is ours or a namesake's that leaves."""
    for error in errors:
        if isinstance(error, Forbidden | Invalid):
            raise error
    for error in errors:
        if not isinstance(error, AlreadyExists):
            raise error
    if errors:
        raise RetryLater(NAMESAKE_RETRY_SECONDS)
