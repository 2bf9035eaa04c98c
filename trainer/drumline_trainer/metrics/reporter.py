"""From the training loop to whoever listens: heartbeats, progress lines, the losses file.

Losses stay on the device until a report is due, so a GPU is not stopped every step to read one
number. The reduced loss is the same on every rank; rank 0 alone writes lines and files.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from drumline_trainer.config import TrainerConfig
from drumline_trainer.heartbeat import Heartbeat, Phase, Word
from drumline_trainer.metrics.flops import flops_per_token, mfu
from drumline_trainer.metrics.losses import append_losses
from drumline_trainer.metrics.progress import progress_line
from drumline_trainer.placement import Placement


@dataclass(slots=True, kw_only=True)
class Reporter:
    """Mutable figures of one rank's run."""

    config: TrainerConfig
    placement: Placement
    send: Callable[[Word], None] | None
    """Receives heartbeats and events."""
    write: Callable[[str], None]
    """Receives lines for people; called on rank 0 only."""
    losses_file: Path | None
    peak_flops: float | None
    """Of one device, None where unknown."""
    step: int = 0
    loss: float | None = None
    tokens_per_second: float | None = None
    step_seconds: float | None = None
    checkpoint_step: int | None = None
    checkpoint_digest: str = ""
    checkpoint_seconds: float | None = None
    _pending: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """Losses by step, not yet read from the device."""
    _window_start: float = 0.0
    """When the steps of the next report began, later by the time spent in checkpoints."""
    _window_first: int = 0
    """Finished steps at that time."""
    _last_sent: float = -1e9

    def say(self, line: str) -> None:
        """A line for people, from rank 0."""
        if self.placement.rank == 0:
            self.write(line)

    def tell(self, word: Word) -> None:
        """Send an event."""
        if self.send is not None:
            self.send(word)

    def rejoin(self, placement: Placement) -> None:
        """Go on under another placement; the unwritten losses are the abandoned steps'."""
        self.placement = placement
        self._pending.clear()

    def begin(self, step: int) -> None:
        """Training starts after `step` finished steps."""
        self.step = self._window_first = step
        self._window_start = time.monotonic()

    def enter(self, phase: Phase) -> None:
        """Send a heartbeat if one is due."""
        if time.monotonic() - self._last_sent >= self.config.heartbeat_seconds:
            self._send(phase)

    def finish_step(self, step: int, loss: Tensor) -> None:
        """Count a finished step; report at log cadence."""
        self.step = step
        self._pending[step] = loss
        if step % self.config.log_every_steps == 0 or step == self.config.steps:
            self._report()

    def checkpointed(self, *, step: int, digest: str, seconds: float | None) -> None:
        """A checkpoint was committed (it took `seconds`) or restored (None)."""
        self.checkpoint_step, self.checkpoint_digest = step, digest
        if seconds is not None:
            self.checkpoint_seconds = seconds
            self._window_start += seconds
        self.flush_losses()
        self._send(Phase.CHECKPOINT if seconds is not None else Phase.RESTORING)

    def done(self) -> None:
        """The last heartbeat."""
        self._send(Phase.DONE)

    def flush_losses(self) -> None:
        """Read the losses from the device and write them down."""
        losses = {step: float(loss) for step, loss in self._pending.items()}
        self._pending.clear()
        if losses:
            self.loss = losses[max(losses)]
        if losses and self.losses_file is not None and self.placement.rank == 0:
            append_losses(self.losses_file, losses)

    def _report(self) -> None:
        self.flush_losses()
        elapsed = max(time.monotonic() - self._window_start, 1e-9)
        self._window_start += elapsed
        self.step_seconds = elapsed / (self.step - self._window_first)
        self._window_first = self.step
        batch_tokens = self.config.global_batch_size * self.config.data.sequence_length
        self.tokens_per_second = batch_tokens / self.step_seconds
        self.say(
            progress_line(
                step=self.step,
                total_steps=self.config.steps,
                loss=self.loss or 0.0,
                tokens_per_second=self.tokens_per_second,
                eta_seconds=(self.config.steps - self.step) * self.step_seconds,
            )
        )

    def _send(self, phase: Phase) -> None:
        if self.send is None:
            return
        self._last_sent = time.monotonic()
        self.send(
            Heartbeat(
                generation=self.placement.generation,
                attempt=self.placement.attempt,
                rank=self.placement.rank,
                step=self.step,
                total_steps=self.config.steps,
                phase=phase,
                loss=self.loss,
                tokens_per_second=self.tokens_per_second,
                step_seconds=self.step_seconds,
                mfu=self._mfu(),
                checkpoint_step=self.checkpoint_step,
                checkpoint_digest=self.checkpoint_digest,
                checkpoint_seconds=self.checkpoint_seconds,
                time_seconds=self._last_sent,
            )
        )

    def _mfu(self) -> float | None:
        if self.tokens_per_second is None:
            return None
        return mfu(
            self.tokens_per_second,
            flops=flops_per_token(
                self.config.model, sequence_length=self.config.data.sequence_length
            ),
            devices=self.placement.world_size,
            peak=self.peak_flops,
        )
