"""A tiny cluster in memory that `plan()` drives: a job, its pods, kubelets, agents, an operator.

The server's side (`job`, `pods`) is the truth. The operator's side is what it read last, perhaps
stale (`seen_job`, `seen_pods`), and what it remembers, lost when it crashes (`memory`). A crash can
come before or after any write; what must never be written is asserted where it would be.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from drumline.api.conditions import ConditionType
from drumline.lifecycle import status as to
from drumline.lifecycle.actions import (
    Action,
    CreateMembers,
    DeleteJob,
    DeletePods,
    Plan,
    ProtectMembers,
    PushRecord,
)
from drumline.lifecycle.job import Job, Observed, PodEnd, PodFacts, seconds
from drumline.lifecycle.plan import is_queued, plan, restart_backoff_seconds
from drumline_trainer.contract import GenerationRecord, pod_name

UNSEEN_SECONDS = 10.0


class Crash(Exception):  # noqa: N818 - an event, no error
    """The operator dies here."""


class Conflict(Exception):  # noqa: N818 - as the API calls it
    """The status was written by somebody else since it was read."""


@dataclass(slots=True)
class Memory:
    """What the operator loses when it dies."""

    children: bool = False
    protected: bool = False
    acknowledged: int | None = None
    unseen: dict[str, float] = field(default_factory=dict[str, float])


class Model:
    """The cluster; see the module."""

    def __init__(self, job: Job) -> None:
        self.now = job.created_at
        self.job: Job = job
        self.pods: dict[str, PodFacts] = {}
        self.told: set[str] = set()
        """Uids of pods whose agent knows its generation's record."""
        self.writes: Counter[str] = Counter()
        self.own_failures = 0
        """Ends by a member's own doing: at most so many restarts may be charged."""
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
                    return
                self._write_status(planned.status)
        except Crash:
            self.restart_operator()
        except Conflict:
            return

    def planned(self) -> Plan:
        """What the operator would do now, from what it sees and remembers."""
        self.memory.unseen = {
            name: since
            for name, since in self.memory.unseen.items()
            if name not in self.seen_pods and self.now < since + UNSEEN_SECONDS
        }
        seen = Observed(
            pods=tuple(self.seen_pods.values()),
            acknowledged_generation=self.memory.acknowledged,
            protected=self.memory.protected,
            expected_pods=frozenset(self.memory.unseen),
        )
        return plan(self.seen_job, seen, now=self.now, epoch=self.epoch)

    def schedule(self, nodes: tuple[str, ...]) -> None:
        """One cycle of a scheduler that finds these nodes free."""
        if not is_queued(self.seen_job):
            return
        status = to.admitted(
            self.seen_job,
            pool="pool",
            nodes=nodes,
            epoch=self.epoch,
            image="image",
            now=self.now,
        )
        try:
            self._write_status(status)
        except Crash:
            self.restart_operator()
        except Conflict:
            return

    def _write_status(self, status: to.TrainingJobStatus) -> None:
        if self.seen_job.resource_version != self.job.resource_version:
            raise Conflict
        self._die_before()
        before = self.job.status
        assert status != before, "nothing is written when nothing changed"
        assert (status.generation or 0) >= (before.generation or 0)
        charged = (status.restarts or 0) - (before.restarts or 0)
        assert charged in (0, 1)
        assert (status.restarts or 0) <= self.own_failures
        self.job = replace(
            self.job,
            status=status,
            resource_version=str(int(self.job.resource_version) + 1),
        )
        self.seen_job = self.job
        self._done("status")

    def _act(self, action: Action) -> None:
        match action:
            case CreateMembers(indices=indices):
                self._create(indices)
            case DeletePods(generations=generations):
                self._die_before()
                for pod in list(self.pods.values()):
                    if pod.generation in generations:
                        self.delete(pod)
                self._done("delete")
            case PushRecord(record=record):
                self._push(record)
            case ProtectMembers():
                self._die_before()
                self.memory.protected = True
                self._done("child")
            case DeleteJob():
                raise AssertionError("no job of this model has a time to live")

    def _create(self, indices: tuple[int, ...]) -> None:
        if not self.memory.children:
            for _ in range(2):
                self._die_before()
                self._done("child")
            self.memory.children = True
        generation = self.seen_job.status.generation or 0
        assignment = self.seen_job.status.assignment
        assert assignment is not None
        for index in indices:
            name = pod_name(self.job.name, index, generation)
            self._die_before()
            if index == self.uncreatable:
                continue
            if name in self.pods:
                self.memory.unseen.pop(name, None)
                continue
            here = assignment.node_names()
            older = [pod for pod in self.pods.values() if pod.generation < generation]
            assert all(pod.end is not None or pod.node not in here for pod in older), (
                "two generations at once on a node"
            )
            self._uids += 1
            self.pods[name] = PodFacts(
                name=name,
                uid=f"uid-{self._uids}",
                index=index,
                generation=generation,
                node=assignment.node_names()[index],
            )
            self.memory.unseen[name] = self.now
            self._done("pod")

    def _push(self, record: GenerationRecord) -> None:
        """The store's agent takes the record if it is there and of this generation."""
        by_uid = {pod.uid: pod for pod in self.pods.values()}
        members = [by_uid.get(member.pod_uid) for member in record.members]
        store = members[0]
        if store is None or not store.reachable or store.generation != record.generation:
            return
        self.memory.acknowledged = record.generation
        self.told |= {pod.uid for pod in members if pod is not None}

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

    # --- kubelets, agents and people --------------------------------------------------------

    def stand(self, pod: PodFacts) -> None:
        """The pod gets its address, its agent answers; one's own container waits for the gang."""
        if pod.end is None and not pod.terminating:
            waits = not self.job.runs_trainer and self.job.has_agents and pod.uid not in self.told
            address = f"10.0.0.{pod.index + 1}"
            self._change(pod, replace(pod, ip=address, joining=waits, ready=not waits))

    def end(self, pod: PodFacts, code: int) -> None:
        """The main container exits; success only comes with a record."""
        alone = not self.job.has_agents
        if pod.end is not None or (code == 0 and not alone and pod.uid not in self.told):
            return
        if code != 0:
            self.own_failures += 1
        ended = PodEnd(succeeded=code == 0, exit_code=code, ended_at=self.now)
        self._change(pod, replace(pod, ready=False, joining=False, end=ended))

    def refuse(self, pod: PodFacts) -> None:
        """The kubelet does not admit the pod."""
        if pod.end is None and not pod.ip:
            ended = PodEnd(succeeded=False, reason="OutOfnvidia.com/gpu")
            self._change(pod, replace(pod, end=ended))

    def delete(self, pod: PodFacts) -> None:
        """Somebody deletes the pod: one that runs has its grace period, others go at once."""
        if pod.end is None and pod.ip:
            self._change(pod, replace(pod, terminating=True, ready=False))
        else:
            self.pods.pop(pod.name, None)

    def leave(self, pod: PodFacts) -> None:
        """The grace period of a deleted pod is over."""
        if pod.terminating:
            self.pods.pop(pod.name, None)

    def suspend(self, *, wanted: bool) -> None:
        """The user changes spec.suspend."""
        if self.job.spec.suspend != wanted:
            self.job = replace(
                self.job,
                spec=self.job.spec.model_copy(update={"suspend": wanted}),
                resource_version=str(int(self.job.resource_version) + 1),
            )

    def _change(self, pod: PodFacts, after: PodFacts) -> None:
        if pod.name in self.pods:
            self.pods[pod.name] = after

    # --- what holds -------------------------------------------------------------------------

    @property
    def start_deadline(self) -> float | None:
        """Until when the present gang must stand; None while it has none or stands."""
        status = self.job.status
        over = self.job.finished or to.is_true(status, ConditionType.RUNNING)
        if over or status.assignment is None or status.generation_at is None:
            return None
        backoff = restart_backoff_seconds(status.restarts or 0)
        return seconds(status.generation_at) + backoff + self.job.spec.start_deadline_seconds

    def settle(self) -> None:
        """The operator does all it can with what there is."""
        for _ in range(20):
            self.look()
            before = (self.job, dict(self.pods), set(self.told), replace(self.memory))
            self.reconcile()
            if before == (self.job, self.pods, self.told, self.memory):
                return
        raise AssertionError("the plan does not settle")
