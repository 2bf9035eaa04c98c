"""From what a process prints of its steps to heartbeats; pure.

A program that has restarted from a checkpoint of its own does not say from which. The first step
it shows lies one interval of its log after that, and the interval is known from before:

    10 20 30 | fault | 30 40      restored: 30 - 10 = step 20
"""

from __future__ import annotations

from dataclasses import dataclass

from drumline_trainer.agent.commands.progress_lines import ProgressLine
from drumline_trainer.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_trainer.rank_protocol.placement import Placement


@dataclass(slots=True)
class StepHistory:
    """Of one local rank, over all its attempts in this pod."""

    known: bool = False
    """It has shown steps before: so it will again."""
    _interval: int = 1
    _newest: int | None = None
    """Step that this attempt has shown last."""
    _restored: int | None = None
    _total_steps: int = 0

    def begin_attempt(self) -> None:
        """The process is started again."""
        self._newest, self._restored = None, None

    def heartbeat(
        self, shown: ProgressLine | None, placement: Placement, *, now: float
    ) -> Heartbeat:
        """The heartbeat that stands for a line, or for a process of which no step is known."""
        if shown is None:
            phase = Phase.STARTING if self.known else Phase.RUNNING
            return _beat(placement, phase=phase, now=now)
        if self._newest is not None and shown.step > self._newest:
            self._interval = shown.step - self._newest
        if self._restored is None:
            self._restored = max(0, shown.step - self._interval)
        self.known, self._newest = True, shown.step
        self._total_steps = shown.total_steps or self._total_steps
        rate = shown.tokens_per_second_of_a_rank
        return _beat(
            placement,
            phase=Phase.FORWARD,
            now=now,
            step=shown.step,
            total_steps=self._total_steps,
            loss=shown.loss,
            tokens_per_second=None if rate is None else rate * placement.world_size,
            restored_step=self._restored,
        )


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
        time_seconds=now,
    )
