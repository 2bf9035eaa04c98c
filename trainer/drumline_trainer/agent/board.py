"""What this agent knows about its ranks right now: the source of status, metrics and last words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drumline_trainer.contract import AgentPhase, AgentStatus, Progress

if TYPE_CHECKING:
    from drumline_trainer.agent.settings import AgentSettings
    from drumline_trainer.heartbeat import Heartbeat


class Board:
    """Newest heartbeat of each local rank, and the phase of the agent."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._heartbeats: dict[int, Heartbeat] = {}
        self.ready = False
        """The zygote is warm: ranks start as soon as a record comes."""
        self.phase = AgentPhase.WAITING
        self.generation = 0
        self.attempt = 0
        self.ranks_up: dict[int, bool] = {}

    def begin(self, *, generation: int, attempt: int, ranks: range) -> None:
        """A new attempt starts: what earlier ranks said no longer counts."""
        self.phase = AgentPhase.STARTING
        self.generation, self.attempt = generation, attempt
        self.ranks_up = dict.fromkeys(ranks, True)
        self._heartbeats = {}

    def beat(self, heartbeat: Heartbeat) -> None:
        """A local rank gave a sign of life."""
        self._heartbeats[heartbeat.rank] = heartbeat
        if self.phase is AgentPhase.STARTING:
            self.phase = AgentPhase.RUNNING

    @property
    def heartbeat(self) -> Heartbeat | None:
        """The newest of the lowest local rank that spoke: it stands for the pod."""
        return self._heartbeats[min(self._heartbeats)] if self._heartbeats else None

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
            phase=self.phase,
            progress=self.progress,
        )
