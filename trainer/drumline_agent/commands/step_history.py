"""From what a process says of its steps, by its client or in what it prints, to heartbeats; pure.

A program that has restarted from a checkpoint of its own does not say from which. The first step
it shows lies one interval of its log after that, and the interval is known from before:

    10 20 30 | fault | 30 40      restored: 30 - 10 = step 20
"""

from __future__ import annotations

from dataclasses import dataclass

from drumline_agent.commands.progress_lines import ProgressLine
from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.rank_protocol.placement import Placement
from drumline_client.wire import StepReport
from drumline_contract import RestoreTier

_PHASES = {
    "evaluating": Phase.EVALUATION,
    "data": Phase.DATA,
    "saving": Phase.CHECKPOINT,
    "done": Phase.DONE,
}
"""Phases of the client. In all other phases the rank computes a step."""


@dataclass(slots=True)
class StepHistory:
    """Steps of one local rank, over all its attempts in this pod."""

    known: bool = False
    """True once the rank has reported a step."""
    has_client: bool = False
    """True once the rank's client has reported a step. Printed steps then no longer count."""
    _interval: int = 1
    _newest: int | None = None
    """Step that this attempt has shown last."""
    _restored: int | None = None
    _total_steps: int = 0

    @property
    def shows_steps(self) -> bool:
        """True if this attempt has shown a step."""
        return self._newest is not None

    def begin_attempt(self) -> None:
        """Forget the steps of the attempt before."""
        self._newest, self._restored = None, None

    def heartbeat(
        self, shown: ProgressLine | None, placement: Placement, *, now: float
    ) -> Heartbeat:
        """Build the heartbeat for a printed line, or for a process without a known step.

        Args:
            shown: the line's figures, or None.
            placement: placement of the process.
            now: time of this machine's monotonic clock.
        """
        if shown is None:
            uses_client = placement.restore_snapshot is not None  # and so will say its steps
            phase = Phase.STARTING if self.known or uses_client else Phase.RUNNING
            return _beat(placement, phase=phase, now=now)
        # 1. Programs print every N steps. N is the distance of the last two.
        if self._newest is not None and shown.step > self._newest:
            self._interval = shown.step - self._newest
        # 2. The first step of an attempt is N after the step that it restored.
        if self._restored is None:
            self._restored = max(0, shown.step - self._interval)
        self.known, self._newest = True, shown.step
        self._total_steps = shown.total_steps or self._total_steps
        # 3. Some programs print the rate of one rank, others that of all.
        rate, rate_of_all = shown.tokens_per_second_of_a_rank, shown.tokens_per_second
        return _beat(
            placement,
            phase=Phase.FORWARD,
            now=now,
            step=shown.step,
            total_steps=self._total_steps,
            loss=shown.loss,
            tokens_per_second=rate_of_all if rate is None else rate * placement.world_size,
            restored_step=self._restored,
        )

    def reported(
        self,
        report: StepReport,
        placement: Placement,
        *,
        checkpoint_step: int | None,
        tokens_per_second: float | None,
        now: float,
    ) -> Heartbeat:
        """Build the heartbeat for a report of the client.

        Args:
            report: the newest state of the rank.
            placement: placement of its process.
            checkpoint_step: the newest checkpoint that the ranks have reported complete.
            tokens_per_second: tokens per second of all ranks.
            now: time of this machine's monotonic clock.
        """
        self._total_steps = report.total_steps or self._total_steps
        if report.step is None:
            return self.heartbeat(None, placement, now=now)
        step = max(report.step, 0)
        self.known = self.has_client = True
        self._newest = step
        if report.restored_step is not None:
            self._restored = max(report.restored_step, 0)
        # The script did not say what it restored: assume the newest checkpoint before this step.
        if self._restored is None:
            is_older = checkpoint_step is not None and checkpoint_step <= step
            self._restored = checkpoint_step if is_older else max(0, step - 1)
        return _beat(
            placement,
            phase=_PHASES.get(report.phase, Phase.FORWARD),
            now=report.at,
            step=step,
            total_steps=max(self._total_steps, 0),
            loss=report.loss,
            tokens_per_second=tokens_per_second,
            restored_step=self._restored,
            restored_from=None if report.restored_step is None else RestoreTier.MEMORY,
            checkpoint_step=checkpoint_step,
        )


def position(report: StepReport) -> tuple[int, int, int]:
    """Return a rank's position from its client's report, in the order of `Heartbeat.position`."""
    phase = _PHASES.get(report.phase, Phase.FORWARD)
    return max(report.step or 0, 0), 0, list(Phase).index(phase)


def _beat(
    placement: Placement,
    *,
    phase: Phase,
    now: float,
    step: int = 0,
    total_steps: int = 0,
    loss: float | None = None,
    tokens_per_second: float | None = None,
    restored_step: int | None = None,
    restored_from: RestoreTier | None = None,
    checkpoint_step: int | None = None,
) -> Heartbeat:
    return Heartbeat(
        generation=placement.generation,
        attempt=placement.attempt,
        rank=placement.rank,
        step=step,
        total_steps=total_steps,
        phase=phase,
        loss=loss,
        tokens_per_second=tokens_per_second,
        restored_step=restored_step,
        restored_from=restored_from,
        checkpoint_step=checkpoint_step,
        time_seconds=now,
    )
