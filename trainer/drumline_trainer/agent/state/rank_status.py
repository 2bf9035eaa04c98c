"""What this agent knows about its ranks right now: the source of status, metrics and last words."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drumline_trainer.agent.base.change_notifier import ChangeNotifier
from drumline_trainer.agent.protocol.leader_orders import CommittedCheckpoint
from drumline_trainer.contract import (
    AgentPhase,
    AgentStatus,
    FaultClass,
    NoticeAnswer,
    Progress,
    SilentMember,
)

if TYPE_CHECKING:
    from drumline_trainer.agent.base.settings import AgentSettings
    from drumline_trainer.contract import Incident
    from drumline_trainer.rank_protocol.heartbeat import Heartbeat

SHOWN_INCIDENTS = 16
"""A status is read whole by the operator: it is kept small."""
STEP_WEIGHT = 0.3
"""Of the newest step in the mean step time."""


@dataclass(frozen=True, slots=True)
class ReceivedHeartbeat:
    """A heartbeat and when it came, on this agent's monotonic clock."""

    heartbeat: Heartbeat
    at: float


class RankStatusStore:
    """Newest heartbeat of each local rank, and what the operator waits to hear.

    `version` is raised when anything changes that the operator acts on; steps, losses and rates are
    read along with it.
    """

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._bell = ChangeNotifier()
        self._shown: object = None
        self._phase = AgentPhase.WAITING
        self.ready = False
        """The zygote is warm: ranks start as soon as a record comes."""
        self.version = 0
        self.generation = 0
        self.attempt = 0
        self.ranks_up: dict[int, bool] = {}
        self.heartbeats: dict[int, ReceivedHeartbeat] = {}
        self.step_seconds: float | None = None
        """Usual time of a step, checkpoints and restarts left out; outlives attempts."""
        self.newest_checkpoint: CommittedCheckpoint | None = None
        """The newest checkpoint ever heard of; outlives attempts and generations."""
        self.silent_members: tuple[SilentMember, ...] = ()
        self.incidents: tuple[Incident, ...] = ()
        self.notice: NoticeAnswer | None = None
        self.restarts: dict[FaultClass, int] = {}
        """Attempts that this agent, as the leader, began after a fault of this class."""

    @property
    def phase(self) -> AgentPhase:
        """Where the agent stands."""
        return self._phase

    @phase.setter
    def phase(self, phase: AgentPhase) -> None:
        self._phase = phase
        self.publish()

    def begin_attempt(self, *, generation: int, attempt: int, ranks: range) -> None:
        """A new attempt starts: what ranks said in earlier ones no longer counts."""
        self.generation, self.attempt = generation, attempt
        self.ranks_up = dict.fromkeys(ranks, True)
        self.heartbeats = {}
        self.phase = AgentPhase.STARTING

    def record_heartbeat(self, heartbeat: Heartbeat) -> None:
        """A local rank gave a sign of life."""
        now = time.monotonic()
        before = self.heartbeats.get(heartbeat.rank)
        self.heartbeats[heartbeat.rank] = ReceivedHeartbeat(heartbeat, now)
        if heartbeat.step_seconds is not None:
            self._learn(heartbeat.step_seconds)
        elif before is not None and heartbeat.step > before.heartbeat.step:
            self._learn((now - before.at) / (heartbeat.step - before.heartbeat.step))
        if heartbeat.checkpoint_step is not None:
            self.note_checkpoint(
                CommittedCheckpoint(
                    step=heartbeat.checkpoint_step, digest=heartbeat.checkpoint_digest
                )
            )
        if self._phase is AgentPhase.STARTING:
            self._phase = AgentPhase.RUNNING
        self.publish()

    def note_checkpoint(self, saved: CommittedCheckpoint) -> None:
        """Somebody of the gang knows of a committed checkpoint."""
        if self.newest_checkpoint is None or saved.step > self.newest_checkpoint.step:
            self.newest_checkpoint = saved

    def _learn(self, seconds: float) -> None:
        old = self.step_seconds
        self.step_seconds = (
            seconds if old is None else (1 - STEP_WEIGHT) * old + STEP_WEIGHT * seconds
        )

    def publish(self) -> None:
        """Raise the version if what the operator acts on is another than before."""
        shown = (
            self._phase,
            self.generation,
            self.attempt,
            [(silence.index, int(silence.seconds)) for silence in self.silent_members],
            self.incidents,
            self.notice,
            self.progress.checkpoint_step,
        )
        if shown != self._shown:
            self._shown = shown
            self.version += 1
            self._bell.notify()

    async def wait_for_other_version(self, version: int) -> int:
        """Wait for another version than this one."""
        return await self._bell.wait_for(lambda: self.version if self.version != version else None)

    @property
    def trained_step(self) -> int | None:
        """Steps finished in this attempt's training; None before it has begun."""
        steps = [
            one.heartbeat.step for one in self.heartbeats.values() if one.heartbeat.position[0] >= 0
        ]
        return max(steps, default=None)

    @property
    def heartbeat(self) -> Heartbeat | None:
        """The newest of the lowest local rank that spoke: it stands for the pod."""
        return self.heartbeats[min(self.heartbeats)].heartbeat if self.heartbeats else None

    @property
    def progress(self) -> Progress:
        """How far the pod's ranks are; the loss is the same on every rank."""
        newest = self.heartbeat
        if newest is None:
            return Progress()
        return Progress(
            step=newest.step,
            total_steps=newest.total_steps,
            loss=newest.loss,
            tokens_per_second=newest.tokens_per_second,
            checkpoint_step=newest.checkpoint_step,
            checkpoint_digest=newest.checkpoint_digest,
        )

    @property
    def status(self) -> AgentStatus:
        """Answer of `GET /v1/status`."""
        return AgentStatus(
            job_uid=self._settings.job_uid,
            pod_uid=self._settings.pod_uid,
            index=self._settings.index,
            generation=self.generation,
            attempt=self.attempt,
            phase=self._phase,
            progress=self.progress,
            version=self.version,
            silent=self.silent_members,
            incidents=self.incidents[-SHOWN_INCIDENTS:],
            notice=self.notice,
        )
