"""State of this agent's ranks: the source of its status, metrics and final report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from drumline_agent.base.change_notifier import ChangeNotifier
from drumline_agent.base.settings import AgentSettings
from drumline_agent.protocol.leader_orders import CommittedCheckpoint
from drumline_agent.rank_protocol.heartbeat import Heartbeat
from drumline_agent.state.work_pace import WorkPace
from drumline_contract import (
    AgentPhase,
    AgentStatus,
    ComputePoint,
    FaultClass,
    Incident,
    NoticeAnswer,
    Pause,
    Progress,
    Remark,
    RemarkKind,
    SilentMember,
    SlowMember,
    StepPart,
    StepPartSeconds,
    StepPoint,
    rank_compute,
    step_series,
)
from drumline_contract.prompt_answers import MAX_ANSWERS_CHARS
from drumline_contract.step_figures.part_comparison import step_part_of
from drumline_contract.step_series import SAVING, shares_of


@dataclass(slots=True)
class StepPace:
    """Time that the remaining steps of an attempt need.

    It uses the mean over the whole attempt, with evaluations and checkpoints, because they recur.
    The first step does not count, because it compiles and fills caches.

        step 101 at 60 s, step 201 at 260 s, of 1,001: 2 s a step, 1,600 s are left
    """

    _first: tuple[int, float] | None = None
    _newest: tuple[int, float] | None = None

    def note(self, step: int, *, at: float) -> None:
        """Note the number of finished steps at a time. A repeated number is ignored."""
        if self._first is None or self._newest is None or step < self._first[0]:
            self._first = self._newest = (step, at)
        elif step > self._newest[0]:
            self._newest = (step, at)

    def seconds_left(self, total_steps: int, *, now: float) -> float | None:
        """Return seconds until the last step ends, or None if pace or end are not known."""
        if self._first is None or self._newest is None or total_steps <= 0:
            return None
        (begin, since), (step, at) = self._first, self._newest
        if step >= total_steps:
            return 0.0
        if step == begin:
            return None
        return max(0.0, (total_steps - step) * (at - since) / (step - begin) - (now - at))


def step_point(heartbeat: Heartbeat, *, usual_seconds: float | None) -> StepPoint:
    """Build a point of the series for the step that a rank finished last.

    Args:
        heartbeat: heartbeat of the lowest rank of the pod.
        usual_seconds: step time as the agent counted it, used if the rank reports none.
    """
    seconds = seconds_by_part(heartbeat.step_parts or {})
    shares = shares_of(seconds)
    measured = heartbeat.step_seconds if heartbeat.step_seconds is not None else usual_seconds
    return StepPoint(
        step=heartbeat.step,
        generation=heartbeat.generation,
        checkpoint=heartbeat.checkpoint_step,
        loss=heartbeat.loss,
        gradient_norm=heartbeat.gradient_norm,
        tokens_per_second=heartbeat.tokens_per_second,
        step_seconds=sum(seconds.values()) if shares else measured,
        parts=shares,
    )


def merge_points(known: StepPoint, newest: StepPoint) -> StepPoint:
    """Merge later figures of the same step, since a program may print its loss last."""
    older = {each.name: getattr(known, each.name) for each in fields(StepPoint)}
    unknown = {name: value for name, value in older.items() if getattr(newest, name) in (None, {})}
    return replace(newest, **unknown)


def seconds_by_part(timed: Mapping[str, float]) -> dict[str, float]:
    """Map the parts of the step timer to those of a series: forward and backward are `compute`."""
    seconds: dict[str, float] = {}
    for name, value in timed.items():
        part = str(step_part_of(name) or SAVING)
        seconds[part] = seconds.get(part, 0.0) + value
    return seconds


SHOWN_INCIDENTS = 16
"""Bounds a status, which the operator reads as a whole."""
STEP_WEIGHT = 0.3
"""Weight of the newest step in the mean step time."""


@dataclass(frozen=True, slots=True)
class ReceivedHeartbeat:
    """A rank's heartbeat and when it arrived, on this agent's monotonic clock."""

    heartbeat: Heartbeat
    at: float


class RankStatusStore:
    """Newest heartbeat of each local rank, and the rest of the agent's status.

    `version` rises when anything changes that the operator acts on; steps, losses and rates are
    read along with it and do not raise it.
    """

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._notifier = ChangeNotifier()
        self._published: object = None
        # The state of this pod's ranks.
        self._phase = AgentPhase.WAITING
        self.ready = False
        """The zygote has imported: ranks start as soon as a record arrives."""
        self.version = 0
        self.generation = 0
        self.attempt = 0
        self.ranks_up: dict[int, bool] = {}
        self.heartbeats: dict[int, ReceivedHeartbeat] = {}
        self.step_seconds: float | None = None
        """Usual time of a step, without checkpoints and restarts; kept over attempts."""
        self._pace = StepPace()
        self._points: tuple[StepPoint, ...] = ()
        """Points of this attempt."""
        self._work: dict[int, WorkPace] = {}
        self.answers = ""
        """The continued prompts of the newest evaluation (`prompt_answers`), kept over attempts."""
        # The state of the gang, which only a leader knows.
        self.pause: Pause | None = None
        """At the leader: how long no rank of the gang has shown work; None: it cannot tell."""
        self.newest_checkpoint: CommittedCheckpoint | None = None
        """The newest checkpoint that was ever reported; kept over attempts and generations."""
        self.silent_members: tuple[SilentMember, ...] = ()
        self.slow_members: tuple[SlowMember, ...] = ()
        """At the leader; the operator reads them along with whatever else has changed."""
        self.compute_points: tuple[ComputePoint, ...] = ()
        """At the leader, of this attempt."""
        self.incidents: tuple[Incident, ...] = ()
        self.notice: NoticeAnswer | None = None
        self.waiting_for = ""
        """Why the gang waits instead of training; empty while it does not."""
        self.held_seconds = 0.0
        """Seconds for which the gang was held for its user before it gave up."""
        self._remarks: dict[RemarkKind, str] = {}
        self.acknowledges_saves = False
        """The program answers notices: a rank, here or (at the leader) anywhere, has asked its
        client whether to save. Kept over attempts: it will again."""
        self.restarts: dict[FaultClass, int] = {}
        """Attempts that this agent, as the leader, started after a fault of this class."""

    @property
    def phase(self) -> AgentPhase:
        """The agent's phase."""
        return self._phase

    @phase.setter
    def phase(self, phase: AgentPhase) -> None:
        self._phase = phase
        self.publish()

    def begin_attempt(self, *, generation: int, attempt: int, ranks: range) -> None:
        """Begin an attempt: heartbeats of earlier attempts no longer count.

        Args:
            generation: generation of the gang.
            attempt: number of the attempt in this generation.
            ranks: ranks of this pod.
        """
        self.generation, self.attempt = generation, attempt
        self.ranks_up = dict.fromkeys(ranks, True)
        self.heartbeats = {}
        self._pace = StepPace()
        self._points = ()
        self.compute_points = ()
        self._work = {rank: self._work.get(rank, WorkPace()) for rank in ranks}
        for work in self._work.values():
            work.begin_attempt()
        self.pause = None
        self.phase = AgentPhase.STARTING

    def record_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Record a heartbeat of a local rank."""
        now = time.monotonic()
        before = self.heartbeats.get(heartbeat.rank)
        self.heartbeats[heartbeat.rank] = ReceivedHeartbeat(heartbeat, now)
        if heartbeat.rank in self._work:
            self._work[heartbeat.rank].note(heartbeat)
        if heartbeat.step_seconds is not None:
            self._average_step_seconds(heartbeat.step_seconds)
        elif before is not None and heartbeat.step > before.heartbeat.step:
            self._average_step_seconds((now - before.at) / (heartbeat.step - before.heartbeat.step))
        if heartbeat.rank == min(self.heartbeats) and heartbeat.position[0] >= 0:
            self._pace.note(heartbeat.step, at=now)
            self._note_point(heartbeat)
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
        """Record a committed checkpoint that a member of the gang has reported."""
        if self.newest_checkpoint is None or saved.step > self.newest_checkpoint.step:
            self.newest_checkpoint = saved

    def _note_point(self, heartbeat: Heartbeat) -> None:
        """Add a finished step to the series, or new figures to its last point."""
        point = step_point(heartbeat, usual_seconds=self.step_seconds)
        last = self._points[-1] if self._points else None
        if last is not None and last.step == point.step:
            self._points = (*self._points[:-1], merge_points(last, point))
        elif point.step > (last.step if last is not None else 0):
            points = [*self._points, point]
            self._points = step_series.thinned(points, most=step_series.RECENT_POINTS)

    def work_of(self, rank: int) -> WorkPace:
        """Return the known pauses of a local rank."""
        return self._work.get(rank) or WorkPace()

    def _average_step_seconds(self, seconds: float) -> None:
        old = self.step_seconds
        self.step_seconds = (
            seconds if old is None else (1 - STEP_WEIGHT) * old + STEP_WEIGHT * seconds
        )

    def publish(self) -> None:
        """Raise the version if anything has changed that the operator acts on."""
        published = (
            self._phase,
            self.generation,
            self.attempt,
            [(member.index, int(member.seconds)) for member in self.silent_members],
            self.incidents,
            self.notice,
            self.waiting_for,
            self.remark,
            self.acknowledges_saves,
            self.pause is not None and self.pause.is_idle,
            self.progress.checkpoint_step,
            self.progress.layout,
        )
        if published != self._published:
            self._published = published
            self.version += 1
            self._notifier.notify()

    async def wait_for_other_version(self, version: int) -> int:
        """Wait until the version differs from this one. Returns it."""
        return await self._notifier.wait_for(
            lambda: self.version if self.version != version else None
        )

    @property
    def remark(self) -> Remark | None:
        """The first of what there is to say."""
        kind = next((kind for kind in RemarkKind if self._remarks.get(kind)), None)
        return None if kind is None else Remark(kind=kind, sentence=self._remarks[kind])

    def set_remark(self, kind: RemarkKind, sentence: str) -> None:
        """Set a remark on the gang; an empty sentence takes it back."""
        if self._remarks.get(kind, "") != sentence:
            self._remarks[kind] = sentence
            self.publish()

    @property
    def trained_step(self) -> int | None:
        """Steps finished in this attempt's training; None before it has begun."""
        steps = [
            received.heartbeat.step
            for received in self.heartbeats.values()
            if received.heartbeat.position[0] >= 0
        ]
        return max(steps, default=None)

    @property
    def heartbeat(self) -> Heartbeat | None:
        """The newest of the lowest local rank that has sent any: it stands for the pod."""
        return self.heartbeats[min(self.heartbeats)].heartbeat if self.heartbeats else None

    @property
    def progress(self) -> Progress:
        """Progress of the pod's ranks; the loss is the same on every rank."""
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
            seconds_left=self._pace.seconds_left(newest.total_steps, now=time.monotonic()),
            layout=newest.layout,
            predicted_tokens_per_second=newest.predicted_tokens_per_second,
            step_parts=tuple(
                StepPartSeconds(part=StepPart(part), measured=measured, predicted=predicted)
                for part, (measured, predicted) in (newest.compared_parts or {}).items()
            ),
            series=step_series.encode(self._points),
            compute_by_rank=rank_compute.encode(self.compute_points),
            answers=self.answers[:MAX_ANSWERS_CHARS],
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
            slow=self.slow_members,
            incidents=self.incidents[-SHOWN_INCIDENTS:],
            notice=self.notice,
            waiting_for=self.waiting_for,
            remark=self.remark,
            acknowledges_saves=self.acknowledges_saves,
            pause=self.pause,
        )
