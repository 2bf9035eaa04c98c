"""A tiny cluster in memory that `plan()` drives: a job, its pods, kubelets, agents, an operator.

The `World` is the truth. The operator's side is what it read last, perhaps stale (`seen_job`,
`seen_pods`), and what it remembers, lost when it crashes (`memory`). A crash can come before or
after any write; what must never be written or deleted is asserted where it would be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from drumline.lifecycle import transitions
from drumline.lifecycle.incidents.restart_budgets import OWN_FAULTS
from drumline.lifecycle.model.conditions import is_true
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import lost_positions, members_of
from drumline.lifecycle.model.observed import Observed, PodEvents, PodFacts
from drumline.lifecycle.model.roles import role_pods
from drumline.lifecycle.model.sizes import allowed_sizes
from drumline.lifecycle.plan.acceptance import is_queued
from drumline.lifecycle.plan.actions import (
    Action,
    CreateMembers,
    DeleteGenerations,
    DeleteJob,
    DeletePods,
    JobPlan,
    LabelPods,
    Notify,
    ProtectMembers,
    PushRecord,
    ReadPodEvents,
    RestoreChildren,
)
from drumline.lifecycle.plan.deadlines import start_deadline
from drumline.lifecycle.plan.node_disruption import evacuated
from drumline.lifecycle.plan.planner import plan_job
from drumline_api.conditions import ConditionType, DisruptionKind, Phase
from drumline_api.jobstatus import TrainingJobStatus
from drumline_contract import GenerationRecord, Notice, pod_name
from tests.property.lifecycle_world import World

UNSEEN_SECONDS = 10.0


class Crash(Exception):  # noqa: N818 - an event, no error
    """The operator dies here."""


class Conflict(Exception):  # noqa: N818 - as the API calls it
    """The status was written by another client since it was read."""


@dataclass(slots=True)
class Memory:
    """What the operator loses when it dies."""

    children: bool = False
    evictable: int | None = None
    acknowledged: int | None = None
    notified: str = ""
    withdrawn: str = ""
    unseen: dict[str, float] = field(default_factory=dict[str, float])
    pod_events: dict[str, PodEvents] = field(default_factory=dict[str, PodEvents])


class Model(World):
    """The world and the operator in it; see the module."""

    def __init__(self, job: Job, *, own_budget: bool = False) -> None:
        super().__init__(job)
        self.own_budget = own_budget
        """Whether the gang has a budget of its own, as a large one has."""
        self.writes: Counter[str] = Counter()
        self.epoch = 1
        self.memory = Memory()
        self.seen_job = job
        self.seen_pods: dict[str, PodFacts] = {}
        self.crash_in: int | None = None
        """The operator dies at its write of this number from now; None: it does not."""
        self.crash_before = False
        self.uncreatable: int | None = None
        """The index whose pod the server fails to create for now."""
        self._uids = 0

    # --- the operator -----------------------------------------------------------------------

    def look(self) -> None:
        """The watches catch up."""
        self.seen_job = self.job
        self.seen_pods = dict(self.pods)

    def restart_operator(self) -> None:
        """A new process: a higher epoch, fresh lists, no memory."""
        self.epoch += 1
        self.memory = Memory()
        self.crash_in = None
        self.look()

    def reconcile(self) -> None:
        """One reconcile as the controller does it; a crash or a conflict ends it."""
        try:
            for _ in range(4):
                planned = self.planned()
                if planned.status is None:
                    for action in planned.actions:
                        self._act(action)
                    if any(isinstance(action, ReadPodEvents) for action in planned.actions):
                        continue
                    return
                self._write_status(planned.status)
        except Crash:
            self.restart_operator()
        except Conflict:
            return

    def planned(self) -> JobPlan:
        """What the operator would do now, from what it sees and remembers."""
        self.memory.unseen = {
            name: since
            for name, since in self.memory.unseen.items()
            if name not in self.seen_pods and self.now < since + UNSEEN_SECONDS
        }
        members = self.record.members if self.record else ()
        silent = {
            pod.uid
            for pod in self.seen_pods.values()
            if pod.node in self.dead and pod.uid in {member.pod_uid for member in members}
        }
        mine = {member.node for member in members_of(self.seen_job.status)}
        seen = Observed(
            pods=tuple(self.seen_pods.values()),
            acknowledged_generation=self.memory.acknowledged,
            evictable=self.memory.evictable,
            expected_pods=frozenset(self.memory.unseen),
            pod_events=self.memory.pod_events,
            silent=frozenset(silent),
            node_disruptions=tuple(
                self.threatened[node] for node in sorted(mine & self.threatened.keys())
            ),
            incidents=self.incidents,
            notice=self.notice,
            notified=self.memory.notified,
            withdrawn=self.memory.withdrawn,
        )
        return plan_job(self.seen_job, seen, now=self.now, epoch=self.epoch)

    def _write_status(self, status: TrainingJobStatus) -> None:
        if self.seen_job.resource_version != self.job.resource_version:
            raise Conflict
        self._die_before()
        before = self.job.status
        assert status != before, "nothing is written when nothing changed"
        assert (status.generation or 0) >= (before.generation or 0)
        for known in before.budgets or ():
            (now,) = [b for b in status.budgets or () if b.fault_class is known.fault_class]
            assert now.used >= known.used, "what was charged stays charged"
        used = {budget.fault_class: budget.used for budget in status.budgets or ()}
        own = sum(used.get(fault_class, 0) for fault_class in OWN_FAULTS)
        assert own <= self.faults.total(), "a fault is charged once"
        checkpoint = before.checkpoint.step if before.checkpoint else 0
        assert (status.checkpoint.step if status.checkpoint else 0) >= checkpoint
        self.store_status(status)
        self.seen_job = self.job
        self._done("status")

    def _act(self, action: Action) -> None:
        match action:
            case CreateMembers(indices=indices):
                self._create(indices)
            case DeleteGenerations(generations=generations):
                self._die_before()
                self._delete([p for p in self.pods.values() if p.generation in generations])
                self._done("delete")
            case DeletePods(pods=pods):
                self._die_before()
                names = {pod.name for pod in pods if self.pods.get(pod.name, pod).uid == pod.uid}
                self._delete([pod for pod in self.pods.values() if pod.name in names])
                self._done("delete")
            case PushRecord(record=record):
                self._push(record)
            case Notify(notice=notice):
                self._notify(notice)
            case ReadPodEvents(pods=pods):
                self.memory.pod_events |= {pod.uid: PodEvents(read_at=self.now) for pod in pods}
            case RestoreChildren():
                raise AssertionError("nothing deletes the children of this model's job")
            case LabelPods(protect=protect, release=release):
                assert protect or release, "nothing is written when nothing changed"
                self._die_before()
                self._label(protect, protected=True)
                self._label(release, protected=False)
                self._done("label")
            case ProtectMembers(evictable=evictable):
                self._die_before()
                self.budget = self.memory.evictable = evictable
                self._done("child")
            case DeleteJob():
                raise AssertionError("no job of this model has a time to live")

    def _label(self, pods: Iterable[PodFacts], *, protected: bool) -> None:
        for pod in pods:
            current = self.pods.get(pod.name)
            if current is not None and current.uid == pod.uid:
                self._change(current, replace(current, protected=protected))

    def _delete(self, pods: list[PodFacts]) -> None:
        status = self.seen_job.status
        lost = set((status.assignment.lost if status.assignment else None) or ())
        kept = {(m.index, m.pod_generation) for m in members_of(status) if m.index not in lost}
        for pod in pods:
            over = self.seen_job.finished
            assert over or (pod.index, pod.generation) not in kept, "a member's pod is deleted"
            self.delete(pod)

    def _create(self, indices: tuple[int, ...]) -> None:
        if not self.memory.children:
            self._die_before()
            self._done("child")
            self.memory.children = True
        members = {member.index: member for member in members_of(self.seen_job.status)}
        for member in (members[index] for index in indices):
            name = pod_name(self.job.name, member.index, member.pod_generation)
            self._die_before()
            if member.index == self.uncreatable:
                continue
            if name in self.pods:
                self.memory.unseen.pop(name, None)
                continue
            here = [pod for pod in self.pods.values() if pod.node == member.node]
            assert all(pod.end is not None for pod in here), "two pods at once on a node"
            self._uids += 1
            self.pods[name] = PodFacts(
                name=name,
                uid=f"uid-{self._uids}",
                index=member.index,
                generation=member.pod_generation,
                node=member.node,
                protected=None if self.own_budget else True,
            )
            self.memory.unseen[name] = self.now
            self._done("pod")

    def _push(self, record: GenerationRecord) -> None:
        if self.take_record(record):
            self.memory.acknowledged = record.generation

    def _notify(self, notice: Notice) -> None:
        disruption = self.job.status.disruption
        durable = disruption is not None and disruption.id == notice.id
        assert durable or not notice.leave, "asked to go before it was durable"
        if self.take_notice(notice):
            self.memory.notified = "" if notice.withdraw else notice.id
            self.memory.withdrawn = notice.id if notice.withdraw else ""

    def _die_before(self) -> None:
        if self.crash_in is not None and self.crash_before:
            self.crash_in -= 1
            if self.crash_in <= 0:
                raise Crash

    def _done(self, what: str) -> None:
        self.writes[what] += 1
        if self.crash_in is not None and not self.crash_before:
            self.crash_in -= 1
            if self.crash_in <= 0:
                raise Crash

    # --- its scheduler ----------------------------------------------------------------------

    def schedule(self, nodes: tuple[str, ...], *, grow: bool = False) -> None:
        """One cycle of a scheduler that may use these nodes, as far as they serve."""
        status = self._placed(tuple(n for n in nodes if self._serves(n)), grow=grow)
        if status is None:
            return
        try:
            self._write_status(status)
        except Crash:
            self.restart_operator()
        except Conflict:
            return

    def _serves(self, node: str) -> bool:
        return node not in self.dead and node not in self.threatened

    def _placed(self, nodes: tuple[str, ...], *, grow: bool) -> TrainingJobStatus | None:
        job, now, epoch = self.seen_job, self.now, self.epoch
        sizes = [size + role_pods(job.spec) for size in allowed_sizes(job.spec)]
        if is_queued(job):
            size = max((size for size in sizes if size <= len(nodes)), default=0)
            if not size:
                return None
            return transitions.admitted(
                job,
                pool="pool",
                nodes=nodes[:size],
                epoch=epoch,
                image="image",
                priority=0,
                now=now,
            )
        members, lost = members_of(job.status), lost_positions(job.status)
        kept = [position for position in range(len(members)) if position not in lost]
        busy = {pod.node for pod in self.seen_pods.values() if pod.end is None}
        busy |= {members[position].node for position in kept}
        free = [node for node in nodes if node not in busy]
        if lost and len(free) >= len(lost):
            chosen = dict(zip(sorted(lost), free, strict=False))
            places = [chosen.get(at, member.node) for at, member in enumerate(members)]
            return transitions.members_replaced(
                job, nodes=places, replaced=lost, epoch=epoch, now=now
            )
        if lost:
            size = max((size for size in sizes if size <= len(kept)), default=0)
            if not size:
                return None
            return transitions.resized(job, kept=kept[:size], added=(), epoch=epoch, now=now)
        if job.status.phase is Phase.RUNNING and job.status.disruption is not None:
            return self._evacuated(free)
        larger = [size for size in sizes if len(members) < size <= len(members) + len(free)]
        calm = is_true(job.status, ConditionType.RUNNING) and job.status.disruption is None
        joining = job.status.assignment.joining if job.status.assignment else None
        if not grow or not larger or not calm or joining or job.finished:
            return None
        added = free[: larger[-1] - len(members)]
        return transitions.resized(job, kept=kept, added=added, epoch=epoch, now=now)

    def _evacuated(self, free: list[str]) -> TrainingJobStatus | None:
        """Members on nodes that are about to go are placed on free nodes, all or none."""
        job, members = self.seen_job, members_of(self.seen_job.status)
        disruption = job.status.disruption
        if disruption is None or not disruption.movable:
            return None
        going = [at for at, m in enumerate(members) if m.index in (disruption.indices or ())]
        if len(free) < len(going):
            return None
        chosen = dict(zip(going, free, strict=False))
        nodes = [chosen.get(at, member.node) for at, member in enumerate(members)]
        return evacuated(job, nodes=nodes, positions=going, epoch=self.epoch, now=self.now)

    def preempt(self) -> None:
        """A job of more importance needs the places."""
        job = self.seen_job
        if job.status.assignment is None or job.finished or job.status.disruption is not None:
            return
        status = transitions.disrupted(
            job,
            kind=DisruptionKind.PREEMPTION,
            by="team/urgent",
            message="needs its GPUs",
            deadline=self.now + 30,
            now=self.now,
        )
        self._decide(status)

    def withdraw(self) -> None:
        """The job of more importance is gone."""
        disruption = self.seen_job.status.disruption
        if disruption is not None and disruption.kind is DisruptionKind.PREEMPTION:
            self._decide(
                transitions.disruption_withdrawn(self.seen_job, message="not needed", now=self.now)
            )

    def _decide(self, status: TrainingJobStatus) -> None:
        try:
            self._write_status(status)
        except Crash:
            self.restart_operator()
        except Conflict:
            return

    # --- what holds -------------------------------------------------------------------------

    @property
    def start_deadline(self) -> float | None:
        """Until when the present gang must stand; None while it has none or stands."""
        status = self.job.status
        over = self.job.finished or is_true(status, ConditionType.RUNNING)
        return None if over or status.assignment is None else start_deadline(self.job)

    def settle(self) -> None:
        """The operator does all it can with what there is."""
        for _ in range(20):
            self.look()
            before = self._picture()
            self.reconcile()
            if before == self._picture():
                return
        raise AssertionError("the plan does not settle")

    def _picture(self) -> tuple[object, ...]:
        return self.job, dict(self.pods), self.record, self.notice, replace(self.memory)
