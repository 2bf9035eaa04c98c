"""The world around the operator: a job's pods, their kubelets, nodes and agents, and its user.

Nothing here decides anything; it plays what can happen. Each node has room for one pod. A *dead*
node does nothing any more and its agents are silent; its pods stay until the node is removed or
boots again. Agents train while all members of their generation record are alive.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import NodeDisruption, PodEnd, PodFacts
from drumline.lifecycle.model.roles import role_pod
from drumline_api.conditions import DisruptionKind
from drumline_api.jobstatus import TrainingJobStatus
from drumline_contract import (
    ExitCode,
    FaultClass,
    FinalReport,
    GenerationRecord,
    Incident,
    Notice,
    NoticeAnswer,
    Progress,
)

NODES = ("node-a", "node-b", "node-c", "node-d")
TOTAL_STEPS = 1000
GRACE_SECONDS = 30


class World:
    """The truth; see the module."""

    def __init__(self, job: Job) -> None:
        self.now = job.created_at
        self.job: Job = job
        self.pods: dict[str, PodFacts] = {}
        self.dead: set[str] = set()
        """Nodes that do nothing any more."""
        self.threatened: dict[str, NodeDisruption] = {}
        self.budget: int | None = None
        """How many members the disruption budget lets a drain evict; None: there is no budget."""
        self.record: GenerationRecord | None = None
        """What the agents know of each other."""
        self.notice: NoticeAnswer | None = None
        self.leave = False
        """Whether that notice asks them to go."""
        self.incidents: tuple[Incident, ...] = ()
        self.step = 0
        self.acknowledged_step = 0
        """Newest step whose checkpoint the agents acknowledged on request."""
        self.faults: Counter[str] = Counter()
        """Ends by the program's own doing, in place or of a pod."""

    # --- agents -----------------------------------------------------------------------------

    def alive(self, pod: PodFacts | None) -> bool:
        """Whether the pod's agent answers."""
        return (
            pod is not None
            and pod.name in self.pods
            and pod.reachable
            and pod.end is None
            and pod.node not in self.dead
        )

    @property
    def gang(self) -> list[PodFacts] | None:
        """The pods of the record, when all of them are alive."""
        if self.record is None:
            return None
        by_uid = {pod.uid: pod for pod in self.pods.values()}
        members = [by_uid.get(member.pod_uid) for member in self.record.members]
        alive = [pod for pod in members if pod is not None and self.alive(pod)]
        return alive if len(alive) == len(members) else None

    def take_record(self, record: GenerationRecord) -> bool:
        """The store's agent takes the record, if it is there and knows no higher generation."""
        by_uid = {pod.uid: pod for pod in self.pods.values()}
        store = by_uid.get(record.store_member.pod_uid)
        if not self.alive(store) or (self.record and self.record.generation > record.generation):
            return False
        assert (record.restore_step or 0) >= self.acknowledged_step, "an acknowledged step is lost"
        if self.record is None or self.record.generation != record.generation:
            self.notice = None
        self.record = record
        return True

    def take_notice(self, notice: Notice) -> bool:
        """The agents take a notice, or its withdrawal if no agent has acted on it."""
        if self.gang is None:
            return False
        if notice.withdraw:
            if self.notice and self.notice.id == notice.id and self.notice.step is None:
                self.notice = None
        elif self.notice is None or self.notice.id != notice.id:
            self.notice, self.leave = NoticeAnswer(id=notice.id), notice.leave
        return True

    def train(self) -> None:
        """A step, if the gang is whole."""
        if self.gang is not None:
            self.step += 1

    def save(self) -> None:
        """The gang answers its notice; asked to go, its pods end."""
        gang = self.gang
        if gang is None or self.notice is None or self.notice.step is not None:
            return
        self.notice = replace(self.notice, step=self.step, digest=f"digest-{self.step}")
        self.acknowledged_step = max(self.acknowledged_step, self.step)
        if self.leave:
            for pod in gang:
                self._end(pod, ExitCode.PREEMPTED)

    def recover_in_place(self, fault_class: FaultClass) -> None:
        """A rank dies and the gang goes on without new pods."""
        if self.gang is None or self.record is None:
            return
        self.faults[fault_class] += 1
        attempts = [
            incident.attempt
            for incident in self.incidents
            if incident.generation == self.record.generation
        ]
        self.incidents += (
            Incident(
                generation=self.record.generation,
                attempt=max(attempts, default=0) + 1,
                fault_class=fault_class,
                cause="rank 0: boom",
                culprit_index=self.record.members[0].index,
                fault_at=self.now - 1,
                detected_at=self.now - 1,
                restored_at=self.now,
                first_step_at=self.now,
                failed_step=self.step,
                restored_step=self.step,
            ),
        )

    # --- kubelets and nodes -----------------------------------------------------------------

    def stand(self, pod: PodFacts) -> None:
        """The pod gets its address, its agent answers; one's own container waits for the gang."""
        if pod.end is None and not pod.terminating and pod.node not in self.dead:
            waits = not self.job.is_supervised and self.job.has_agents and not self.knows(pod)
            address = f"10.0.0.{pod.index + 1}"
            self._change(pod, replace(pod, ip=address, joining=waits, ready=not waits))

    def knows(self, pod: PodFacts) -> bool:
        """Whether the pod's agent knows the newest record."""
        return self.record is not None and pod.uid in {m.pod_uid for m in self.record.members}

    def end(self, pod: PodFacts, code: int) -> None:
        """The main container exits; success only comes with a record and a whole gang."""
        alone = not self.job.has_agents or self._is_by_itself(pod)
        if pod.end is not None or pod.node in self.dead:
            return
        if code == 0 and not alone and not self._may_succeed(pod):
            return
        asked = code == ExitCode.PREEMPTED and self.job.is_supervised
        asked = asked and not self._is_by_itself(pod)
        if code != 0 and not asked:
            self.faults[FaultClass.APPLICATION] += 1
        self._end(pod, code)

    def _is_by_itself(self, pod: PodFacts) -> bool:
        """A pod of a role beside agents: nothing in it knows of the gang."""
        return self.job.is_supervised and role_pod(self.job.spec, pod.index) is not None

    def _may_succeed(self, pod: PodFacts) -> bool:
        """Ranks end well together: none before all have met, the others once one has."""
        if not self.knows(pod):
            return False
        if not self.job.is_supervised:
            return True
        uids = {member.pod_uid for member in self.record.members} if self.record else set()
        done = [p for p in self.pods.values() if p.uid in uids and p.end and p.end.succeeded]
        return bool(done) or self.gang is not None

    def _end(self, pod: PodFacts, code: int) -> None:
        words = ""
        if code == 0 and self.job.runs_trainer:
            done = Progress(step=TOTAL_STEPS, total_steps=TOTAL_STEPS)
            words = FinalReport(progress=done).encode().decode()
        ended = PodEnd(succeeded=code == 0, exit_code=code, message=words, ended_at=self.now)
        self._change(pod, replace(pod, ready=False, joining=False, end=ended))

    def refuse(self, pod: PodFacts) -> None:
        """The kubelet does not admit the pod."""
        if pod.end is None and not pod.ip and pod.node not in self.dead:
            ended = PodEnd(succeeded=False, reason="OutOfnvidia.com/gpu")
            self._change(pod, replace(pod, end=ended))

    def delete(self, pod: PodFacts) -> None:
        """The pod is deleted: a running pod has its grace period, others are removed at once."""
        if pod.end is None and (pod.ip or pod.node in self.dead):
            grace = self.now + GRACE_SECONDS
            self._change(pod, replace(pod, terminating=True, terminates_by=grace, ready=False))
        else:
            self.pods.pop(pod.name, None)

    def leave_node(self, pod: PodFacts) -> None:
        """The grace period of a deleted pod is over."""
        if pod.terminating and pod.node not in self.dead:
            self.pods.pop(pod.name, None)

    def kill_node(self, node: str) -> None:
        """Everything on the node stops at once."""
        self.dead.add(node)

    def boot_node(self, node: str) -> None:
        """The node comes back empty, or is removed and replaced by another of its name."""
        self.dead.discard(node)
        self.threatened.pop(node, None)
        for pod in [pod for pod in self.pods.values() if pod.node == node and pod.end is None]:
            self.pods.pop(pod.name)

    def threaten(self, node: str, *, deadline: float | None) -> None:
        """The disruption of the node is announced."""
        self.threatened[node] = NodeDisruption(
            node=node, kind=DisruptionKind.MAINTENANCE, source="test", deadline=deadline
        )

    def cordon(self, node: str) -> None:
        """The node is cordoned, and not drained yet."""
        self.threatened[node] = NodeDisruption(
            node=node, kind=DisruptionKind.DRAIN, source="spec.unschedulable", certain=False
        )

    def uncordon(self, node: str) -> None:
        """The node is open again."""
        self.threatened.pop(node, None)

    def drain(self, node: str) -> bool:
        """One attempt to evict each pod of the node; whether none is left there."""
        here = [pod for pod in self.pods.values() if pod.node == node and pod.end is None]
        for pod in [pod for pod in here if not pod.terminating]:
            leaving = sum(other.terminating for other in self.pods.values())
            own = pod.protected is None and self.budget is not None and leaving >= self.budget
            if pod.ready and (pod.protected or own):
                continue  # 429: a budget denies it, and nothing remembers that
            self._change(pod, replace(pod, evicted=True))
            self.delete(self.pods[pod.name])
        return not here

    # --- people -----------------------------------------------------------------------------

    def suspend(self, *, wanted: bool) -> None:
        """The user changes spec.suspend."""
        if self.job.spec.suspend != wanted:
            self.job = replace(
                self.job,
                spec=self.job.spec.model_copy(update={"suspend": wanted}),
                resource_version=str(int(self.job.resource_version) + 1),
            )

    def store_status(self, status: TrainingJobStatus) -> None:
        """The API server takes a status."""
        version = str(int(self.job.resource_version) + 1)
        self.job = replace(self.job, status=status, resource_version=version)

    def _change(self, pod: PodFacts, after: PodFacts) -> None:
        if pod.name in self.pods:
            self.pods[pod.name] = after
