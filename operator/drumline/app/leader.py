"""The components of a leader: wired here, and started on caches that have caught up.

Wiring creates objects and starts nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from drumline.controller.agents.client import AgentClient
from drumline.controller.agents.deliveries import Deliveries
from drumline.controller.agents.watch import AgentWatch
from drumline.controller.job_events import JobEvents
from drumline.controller.jobs.status_writer import StatusWriter
from drumline.controller.nodes.health import NodeHealthBook
from drumline.controller.pools.demand_objects import ObjectSettings
from drumline.controller.pools.karpenter_reports import KarpenterReports
from drumline.controller.pools.keeping_pods import KeepingPods
from drumline.controller.pools.node_requests import NodeRequests
from drumline.controller.pools.placeholders import Placeholders
from drumline.controller.pools.templated_objects import TEMPLATED, TemplatedObjects
from drumline.controller.queues.conversion import policy_of
from drumline.controller.queues.usage_history import QueueUsageHistory
from drumline.controller.reconciler.device_binder import DeviceBinder
from drumline.controller.reconciler.executor import Executor
from drumline.controller.reconciler.orphan_sweep import OrphanSweep
from drumline.controller.reconciler.reconciler import Reconciler, work
from drumline.controller.reconciler.shared_objects import SharedObjects
from drumline.controller.reconciler.start_check import StartCheck
from drumline.controller.reconciler.work_queue import WORKERS, WorkQueue
from drumline.controller.scheduler.captures import CycleCaptures
from drumline.controller.scheduler.checked_starts import CheckedStarts
from drumline.controller.scheduler.committer import Committer
from drumline.controller.scheduler.fault_memory import FaultMemory
from drumline.controller.scheduler.forecasts import Forecasts
from drumline.controller.scheduler.guard import Guard
from drumline.controller.scheduler.loop import SchedulerLoop
from drumline.controller.scheduler.unwritten_statuses import UnwrittenStatuses
from drumline.controller.scheduler.waiting_messages import WaitingMessages
from drumline.controller.state.cluster import ClusterCache
from drumline.controller.state.warm_caches import Listener, WarmCaches
from drumline.controller.usage.platform_conditions import PodEvictions
from drumline.controller.usage.reporter import UsageReporter
from drumline.controller.workloads.admission import WorkloadAdmission
from drumline.controller.workloads.evictions import ForeignEvictions
from drumline.controller.workloads.suspension import WorkloadSuspension
from drumline.kube.client import KubeClient
from drumline.kube.events import EventRecorder
from drumline.kube.kinds import GPU_POOLS, Resource
from drumline.kube.views import Key, PodView
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.model.signing_keys import SigningKeys
from drumline.settings import Settings
from drumline.telemetry.incidents import IncidentCounters
from drumline.telemetry.metrics import Metrics
from drumline_scheduler.model import Policy

BURST_SECONDS = 0.1
"""A gang of hundreds is reconciled ten times a second, not once for each event of a pod."""
# Longer than a watch needs to deliver a write, and below Kopf's request timeout.
CATCH_UP_SECONDS = 5.0
ANNOUNCEMENT_SECONDS = 5.0
"""Longest time between two evaluations of announced disruptions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderClocks:
    """Clocks of a leader.

    Attributes:
        wall: seconds since the epoch. It may be wrong, and may be set back.
        monotonic: monotonic seconds.
    """

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Input of one term of leadership.

    Attributes:
        client: fenced client for the API server.
        epoch: number of the term.
        signing_keys: keys from which the jobs' tokens are derived.
        settings: settings of the Deployment.
        metrics: metrics of this process.
        clocks: clocks of the leader.
    """

    client: KubeClient
    epoch: int
    signing_keys: SigningKeys
    settings: Settings
    metrics: Metrics
    clocks: LeaderClocks = field(default_factory=LeaderClocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentAccess:
    """A leader's access to agents. Each part is open as long as the leader leads."""

    client: AgentClient
    watch: AgentWatch
    deliveries: Deliveries


class LeaderComponents:
    """All components of a leader, wired.

    Args:
        term: what this term is given.
        caches: filled, and caught up since the term began.
        queue: keys of the jobs to reconcile.
        agents: the ways to the jobs' agents.
    """

    def __init__(
        self, term: Term, *, caches: WarmCaches, queue: WorkQueue, agents: AgentAccess
    ) -> None:
        settings = term.settings
        self._clocks = clocks = term.clocks
        self._term = term
        self._queue = queue
        self._watch = agents.watch
        # One event for all: several changes cause one scheduling cycle.
        self._wake = asyncio.Event()
        self._pods = pod_settings_of(settings)
        self._caches = caches
        self._state = caches.state
        self._informers = caches.informers
        self.captures = CycleCaptures(file=settings.capture_file, wake=self._wake.set)
        self._writer = StatusWriter(
            client=term.client,
            jobs=self._state.jobs,
            wake_scheduler=self._wake.set,
            clock=clocks.monotonic,
            wall=clocks.wall,
        )
        self._shared = SharedObjects(
            client=term.client,
            settings=self._pods,
            pods=self._pods_of_ours,
            scope=caches.scope,
            clock=clocks.monotonic,
            namespace_uid=self._namespace_uid,
        )
        self._recorder = EventRecorder(term.client, instance=settings.identity)
        self._job_events = JobEvents(self._recorder)
        self._suspension = WorkloadSuspension(client=term.client, recorder=self._recorder)
        self._binder = DeviceBinder(client=term.client, state=self._state, pods=self._pods_of_ours)
        # After the objects that it uses, because the method reads them.
        self._reconciler = self._wire_reconciler(agents)
        self._health = NodeHealthBook(
            jobs=self._state.jobs.all,
            pools=lambda: self._state.pools.by_name,
            nodes=self._state.nodes,
            status_of=self._watch.status,
            recorder=self._recorder,
            uid_of=self._node_uid,
            wake_scheduler=self._wake.set,
            metrics=term.metrics,
        )
        # Set in `start`: a status must not be written before evidence is restored.
        self._reporter: UsageReporter | None = None
        self._looks_at_all = asyncio.Event()

    def start(self, group: asyncio.TaskGroup) -> asyncio.Event:
        """Start scheduler, workers and reporter in `group`.

        Returns:
            the event that is set after the first cycle, however it ended.
        """
        # Phases: restore statuses, wire the loops, start them. None runs before this task yields.
        policy = policy_of(self._term.settings.scheduling)
        usage = self._restore_statuses(policy)
        forecasts = Forecasts(
            state=self._state,
            usage=usage,
            policy=policy,
            clock=self._clocks.wall,
            wake=self._wake.set,
            caught_up=self._caught_up,
            metrics=self._term.metrics.forecasts,
            faults=self._term.metrics.faults,
        )
        node_requests = self._wire_node_requests()
        guard = self._wire_guard()
        messages = self._wire_messages(node_requests, forecasts)
        scheduler = SchedulerLoop(
            state=self._state,
            committer=self._wire_committer(),
            messages=messages,
            metrics=self._term.metrics,
            clock=self._clocks.wall,
            wake=self._wake,
            policy=policy,
            usage=usage,
            forecasts=forecasts,
            captures=self.captures,
            node_requests=node_requests,
            guard=guard,
            faults=FaultMemory(metrics=self._term.metrics, job_events=self._job_events),
            admission=self._start_admission(group),
            enqueue=self._queue.add,
        )
        self._start_workers(group)
        group.create_task(scheduler.run())
        group.create_task(self._look_at_all(after=scheduler.first_cycle_over))
        group.create_task(node_requests.run())
        group.create_task(guard.run())
        group.create_task(messages.run())
        group.create_task(forecasts.run())
        announcements = check_announcements(self._state, enqueue=self._queue.add, wake=self._wake)
        group.create_task(announcements)
        self._reporter = self._wire_reporter(usage, node_requests, forecasts)
        group.create_task(self._reporter.run())
        group.create_task(self._recorder.run())
        group.create_task(self._wire_orphan_sweep().run())
        group.create_task(self._shared.run())
        if self._informers.devices is not None:
            group.create_task(self._binder.run())
        group.create_task(self._writer.settle_doubts())
        # Last: events reach the components only when all of them exist.
        self._caches.lead(
            Listener(
                enqueue=self._queue.add,
                enqueue_soon=lambda key: self._queue.add_after(key, BURST_SECONDS),
                wake_scheduler=self._wake.set,
                progress=self._watch.progress,
            )
        )
        return scheduler.first_cycle_over

    def _start_workers(self, group: asyncio.TaskGroup) -> None:
        # Workers share one queue, which never hands out a key twice at a time.
        for _ in range(WORKERS):
            group.create_task(
                work(queue=self._queue, reconciler=self._reconciler, metrics=self._term.metrics)
            )

    def _restore_statuses(self, policy: Policy) -> QueueUsageHistory:
        """Load evidence against nodes and the queues' past use from the statuses."""
        usage, now = QueueUsageHistory(half_life=policy.history_seconds), self._clocks.wall()
        # Statuses are the only memory of past use. A new leader continues from them.
        statuses = {queue.name: queue.status for queue in self._informers.queues.values()}
        usage.restore(statuses, now=now)
        self._state.budgets.restore(statuses)
        pools = {pool.name: pool.status for pool in self._informers.pools.values()}
        self._health.restore(pools, now=now)
        self._state.interruptions.restore(pools, policy=policy)
        self._state.observe_budgets(now=now)  # before accounts are written that it can count from
        return usage

    async def _look_at_all(self, *, after: asyncio.Event) -> None:
        """Wake the reconciler for every job there is, after the first places.

        Gangs that run need no leader; what waits for this one is who is not placed yet, and ten
        thousand plans without an action take seconds.
        """
        await after.wait()
        # All keys at once, because the queue removes duplicates.
        for job in self._state.jobs.all():
            self._queue.add(job.key)
        self._looks_at_all.set()

    def _node_uid(self, name: str) -> str | None:
        node = self._informers.nodes.get(Key("", name))
        return None if node is None else node.uid

    def _namespace_uid(self, name: str) -> str:
        namespace = self._informers.namespaces.get(Key("", name))
        return "" if namespace is None else namespace.uid

    async def _caught_up(self) -> None:
        await self._looks_at_all.wait()
        await self._queue.wait_idle()

    async def report_spec(self, resource: Resource, name: str, *, version: str) -> None:
        """Write the conditions of a new spec, once the cache has the spec.

        Args:
            resource: GpuPools or TrainingQueues.
            name: name of the object.
            version: resourceVersion of the new spec.
        """
        # Only two kinds are reported, so one test selects the informer.
        informer = self._informers.pools if resource is GPU_POOLS else self._informers.queues
        # A timeout is harmless: the periodic report follows within its interval.
        with suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_SECONDS):
                await informer.wait_version(version)
        if self._reporter is not None:
            await self._reporter.report_spec(resource, name)

    def _wire_reconciler(self, agents: AgentAccess) -> Reconciler:
        term, state = self._term, self._state
        return Reconciler(
            writer=self._writer,
            executor=Executor(
                client=term.client,
                agents=agents.client,
                deliveries=agents.deliveries,
                pods=self._pods,
                signing_keys=term.signing_keys,
                gpus_of=state.gpus_of,
                shared=self._shared,
                # Looked up at each use, because pods change between plan and execution.
                pods_of=lambda job: state.pods.of(job.namespace, job.uid),
                clock=self._clocks.wall,
                monotonic=self._clocks.monotonic,
                is_stuck=state.nodes.is_stuck,
                serves_one_node=state.volumes.serves_one_node,
                default_class=state.volumes.default_class,
            ),
            watch=self._watch,
            state=state,
            epoch=term.epoch,
            progress_seconds=term.settings.progress_seconds,
            metrics=term.metrics,
            ledger=IncidentCounters(term.metrics),
            job_events=self._job_events,
            clock=self._clocks.wall,
            why_unbound=self._binder.why,
        )

    def _wire_committer(self) -> Committer:
        return Committer(
            writer=self._writer,
            foreign=ForeignEvictions(
                client=self._term.client,
                pools=frozenset(self._term.settings.guarded_pools),
                is_tainted=self._state.nodes.promised.__contains__,
                stays=lambda uid, until: self._state.scheduling.foreign_pod_stays(uid, until=until),
                members=self._state.scheduling.group_members,
                workloads=self._state.workloads,
                suspension=self._suspension,
            ),
            pods=self._pods,
            epoch=self._term.epoch,
            signing_key=self._term.signing_keys.current_id,
            preemption_seconds=self._term.settings.preemption_seconds,
            metrics=self._term.metrics,
            job_events=self._job_events,
            enqueue=self._queue.add,
            priority_of=self._state.scheduling.priority_of,
            share_of=self._state.share_of,
            settled_status=self._reconciler.settled_status,
            announce=self._reconciler.announce,
            starts=self._wire_checked_starts(),
            unwritten=UnwrittenStatuses(
                backoffs=self._state.scheduling.backoffs, job_events=self._job_events
            ),
        )

    def _wire_checked_starts(self) -> CheckedStarts:
        check = StartCheck(
            client=self._term.client,
            pods=self._pods,
            gpus_of=self._state.gpus_of,
            terminates=self._state.namespaces.terminating.__contains__,
            serves_one_node=self._state.volumes.serves_one_node,
            default_class=self._state.volumes.default_class,
            pod_of=self._informers.pods.get,
            learn=self._state.scheduling.learn_admitted,
        )
        return CheckedStarts(check=check.refusal, scheduling=self._state.scheduling)

    def _wire_messages(self, node_requests: NodeRequests, forecasts: Forecasts) -> WaitingMessages:
        return WaitingMessages(
            state=self._state,
            writer=self._writer,
            job_events=self._job_events,
            # A node that is being provisioned is a better forecast than the queue.
            expected=lambda uid: node_requests.expected(uid) or forecasts.of(uid),
            clock=self._clocks.wall,
        )

    def _wire_node_requests(self) -> NodeRequests:
        settings, client, clock = self._term.settings, self._term.client, self._clocks.wall
        objects = ObjectSettings(namespace=settings.namespace, image=settings.operator_image)
        requests = NodeRequests(
            pools=self._state.pools,
            pods=self._state.pods,
            modes={
                # Placeholder pods need no extra rights, so the mode is always available.
                "Placeholders": Placeholders(client=client, settings=objects, clock=clock),
                **{
                    mode: TemplatedObjects(client=client, settings=objects, kind=TEMPLATED[mode])
                    for mode in settings.autoscaling_modes  # those need more rights
                },
            },
            keeping=KeepingPods(client=client, settings=objects, clock=clock),
            karpenter=KarpenterReports(client) if settings.read_karpenter else None,
            metrics=self._term.metrics.autoscaling,
            clock=clock,
            wake_scheduler=self._wake.set,
            limited=lambda: self._state.volumes.csi.limited,
        )
        # Requests of the last leader continue, so no second node is asked for.
        requests.restore({pool.name: pool.status for pool in self._informers.pools.values()})
        return requests

    def _wire_guard(self) -> Guard:
        return Guard(
            client=self._term.client,
            state=self._state,
            pools=frozenset(self._term.settings.guarded_pools),
            clock=self._clocks.monotonic,
            wake_scheduler=self._wake.set,
        )

    def _start_admission(self, group: asyncio.TaskGroup) -> WorkloadAdmission | None:
        # None: the chart enables no kind of workload that waits.
        if self._state.workloads is None:
            return None
        admission = WorkloadAdmission(
            client=self._term.client,
            pools=self._state.pools,
            workloads=self._state.workloads,
            events=self._suspension.events,
            suspension=self._suspension,
            seen=self._informers.wait_version,
            wake_scheduler=self._wake.set,
        )
        group.create_task(admission.run())
        return admission

    def _pods_of_ours(self) -> Iterable[PodView]:
        """Return the pods in namespaces of this installation."""
        pods = self._informers.pods.values()
        return (pod for pod in pods if self._caches.scope.covers(pod.namespace))

    def _wire_orphan_sweep(self) -> OrphanSweep:
        return OrphanSweep(
            client=self._term.client,
            pods=self._pods_of_ours,
            # The uid, not the name: a job that was created again must not adopt old pods.
            uid_of=lambda key: job.uid if (job := self._state.jobs.get(key)) else None,
        )

    def _wire_reporter(
        self, usage: QueueUsageHistory, node_requests: NodeRequests, forecasts: Forecasts
    ) -> UsageReporter:
        return UsageReporter(
            client=self._term.client,
            state=self._state,
            queues=self._informers.queues,
            pools=self._informers.pools,
            metrics=self._term.metrics,
            job_metrics=self._term.settings.job_metrics,
            usage=usage,
            health=self._health,
            signing_keys=self._term.signing_keys,
            progress=self._watch.progress,
            autoscaling=node_requests.status_fields,
            expected=forecasts.of,
            evictions=PodEvictions.of(self._term.settings),
            recorder=self._recorder,
            clock=self._clocks.wall,
        )


async def check_announcements(
    state: ClusterCache, *, enqueue: Callable[[str], None], wake: asyncio.Event
) -> None:
    """Reconcile jobs whose announced disruption approaches. Never returns.

    A disruption with a stated time approaches without an event of its node.

    Args:
        state: jobs with their disruptions.
        enqueue: called with the key of a job to reconcile.
        wake: set when a disruption was announced.
    """
    while True:
        await asyncio.sleep(ANNOUNCEMENT_SECONDS)
        for change in state.nodes.check_announcements():
            if change.schedulable:
                wake.set()
            for key in change.jobs:
                enqueue(key)


def pod_settings_of(settings: Settings) -> PodSettings:
    """Return the Deployment's settings for the pods of jobs."""
    return PodSettings(
        trainer_image=settings.trainer_image,
        join_image=settings.operator_image,
        agent_image=settings.agent_image or None,
        priority_class=settings.priority_class,
        user=settings.training_user,
        operator_namespace=settings.namespace,
        trainer_pod=settings.trainer_pod,
        max_grace_seconds=int(settings.preemption_seconds),
        metrics_from=settings.metrics_from,
    )
