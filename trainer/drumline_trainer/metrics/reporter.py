"""Reports of the training loop: heartbeats, progress lines, the losses file, step records.

The reduced loss is the same on every rank. Only rank 0 writes files, and lines unless
`metrics.log_ranks` is all. Losses that are not yet in the file are saved with the snapshots.

    step 40/200  loss 2.613  grad 0.810  18.2k tok/s  eta 0:42
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.rank_protocol.messages import RankMessage
from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import MAX_LAYOUT_CHARS, RestoreTier, StepPart
from drumline_contract.config import LogRanks, TrainerConfig
from drumline_contract.layout import Axis, Layout
from drumline_contract.shapes.flops import mfu_of_run
from drumline_contract.step_figures.bottleneck import BottleneckDiagnosis, diagnose
from drumline_contract.step_figures.part_comparison import PartComparison
from drumline_contract.step_figures.step_record import Rewards, Staleness, StepRecord
from drumline_trainer.metrics.heartbeat_sender import HeartbeatSender
from drumline_trainer.metrics.instruments import Instruments
from drumline_trainer.metrics.losses import append_losses
from drumline_trainer.metrics.memory import MemoryUsage


def progress_line(
    *,
    step: int,
    total_steps: int,
    loss: float,
    gradient_norm: float,
    tokens_per_second: float,
    eta_seconds: float,
    mfu: float | None = None,
    staleness: Staleness | None = None,
    rewards: Rewards | None = None,
) -> str:
    """Return a line for standard output, without unknown figures.

    Args:
        step: number of finished steps.
        total_steps: steps of the run.
        loss: mean loss of the step.
        gradient_norm: norm before clipping.
        tokens_per_second: speed of all ranks.
        eta_seconds: expected time until the end.
        mfu: MFU as a fraction. None: unknown.
        staleness: staleness of asynchronous workers. None: not asynchronous.
        rewards: rewards of preference training. None: no preferences.
    """
    # Phase 1: optional figures. An unknown figure leaves no gap in the line.
    efficiency = "" if mfu is None else f"  mfu {mfu:.1%}"
    eta = format_duration(eta_seconds)
    stale = f"  stale {staleness.mean:.1f}" if staleness and staleness.most else ""
    ahead = f"  margin {rewards.margin:+.3f} ({rewards.accuracy:.0%} ahead)" if rewards else ""
    # Phase 2: fixed-width formats (#.3g keeps trailing zeros), so that columns of successive lines
    # match.
    return (
        f"step {step}/{total_steps}  loss {loss:.3f}{ahead}  grad {gradient_norm:#.3g}"
        f"  {short_count(tokens_per_second)} tok/s{efficiency}{stale}  eta {eta}"
    )


def smoothed(before: float | None, newest: float) -> float:
    """Return an exponential moving average, so that one slow window changes the ETA little."""
    # The weight 0.3 covers about the last three reports.
    return newest if before is None else 0.7 * before + 0.3 * newest


def short_count(value: float) -> str:
    """Write a number with three significant digits: 950, 18.2k, 1.25M."""
    # Decimal units: tokens are counted in powers of 1000.
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:#.3g}{unit}"
    return f"{value:.0f}"


def format_duration(seconds: float) -> str:
    """Write seconds as 0:42, 12:05 or 3:00:00."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class RunReporter:
    """The reporter of one rank, with the present figures of its run."""

    config: TrainerConfig
    placement: Placement
    heartbeats: HeartbeatSender | None
    """Receives heartbeats and events; None where there is no agent."""
    write: Callable[[str], None]
    """Receives lines of text; called on the ranks that print."""
    losses_file: Path | None
    peak_flops: float | None
    """Peak of one device in FLOP/s. None: unknown."""
    show: Callable[[str], None] | None = None
    """Receives progress lines, which may replace each other; None: `write` receives them."""
    instruments: Instruments = field(default_factory=Instruments)
    figures: Heartbeat = field(init=False)
    """The newest figures, without the phase and time that a heartbeat adds."""
    memory: MemoryUsage | None = None
    part_comparison: PartComparison = field(default_factory=lambda: PartComparison(predicted={}))
    learning_rate: float | None = None
    skipped_steps: int = 0
    staleness: Staleness | None = None
    """Since all ranks last synchronized; None where they do so in every step."""
    rewards: Rewards | None = None
    """Rewards of the last step. None: the run does not train on preferences."""
    unwritten: dict[int, float] = field(default_factory=dict[int, float])
    """Losses by step that are not yet in the file."""
    _usual_seconds: float | None = None
    """Seconds of a step, averaged over the last few reports, for the ETA."""
    _printed_bottleneck: str = ""
    _window_start: float = 0.0
    """When the steps of the next report began, plus the time spent in checkpoints."""
    _window_first: int = 0  # finished steps at that time
    _phase: Phase = Phase.STARTING
    _last_beat: float = 0.0
    _mark: bool = True
    """The next heartbeat marks a stage of the start and is sent at once."""

    def __post_init__(self) -> None:
        """Begin without figures."""
        self.figures = Heartbeat(
            generation=self.placement.generation,
            attempt=self.placement.attempt,
            rank=self.placement.rank,
            step=0,
            total_steps=self.config.steps,
            phase=Phase.STARTING,
            time_seconds=0.0,
        )

    def print_line(self, line: str) -> None:
        """Print a line, on the ranks that print."""
        if self._prints:
            self.write(line)

    def send_event(self, word: RankMessage) -> None:
        """Send an event."""
        if self.heartbeats is not None:
            self.heartbeats.send_event(word)

    def plan(
        self,
        summary: str,
        *,
        seconds: float | None,
        reasons: Iterable[str],
        parts: Mapping[StepPart, float] | None = None,
    ) -> None:
        """Report the layout of this membership. It is printed if the planner chose it.

        Args:
            summary: the layout in one line.
            seconds: predicted for a step, or None.
            reasons: reasons of the choice; empty if the layout was configured.
            parts: predicted seconds of a step by part.
        """
        # A new layout has new predictions, so the comparison starts again.
        self.part_comparison = PartComparison(predicted=parts or {})
        # The heartbeat schema bounds the length of the layout.
        self._set(
            layout=summary[:MAX_LAYOUT_CHARS], predicted_step_seconds=seconds, compared_parts=None
        )
        for number, reason in enumerate(reasons):
            if number == 0:
                self.print_line(f"layout: {summary}")
            self.print_line(f"  {reason}")

    def rejoin(self, placement: Placement) -> None:
        """Continue under another placement. Unwritten losses belong to abandoned steps."""
        self.placement = placement
        self.instruments.rejoin(placement)
        # Figures of the former membership must not pass for those of the new one.
        self._set(
            generation=placement.generation,
            attempt=placement.attempt,
            rank=placement.rank,
            restored_step=None,
            restored_from=None,
            micro_batch=0,
        )
        # The new membership repeats steps after the snapshot and reports their losses again.
        self.unwritten.clear()
        self._mark = True

    def begin(
        self,
        step: int,
        *,
        tier: RestoreTier,
        loss: float | None = None,
        unwritten: Iterable[tuple[int, float]] = (),
    ) -> None:
        """Report that training continues after `step` finished steps.

        Args:
            step: finished steps.
            tier: source of the restored state.
            loss: loss of the last finished step.
            unwritten: steps and losses that are not in the losses file yet.
        """
        self._set(step=step, loss=loss, restored_step=step, restored_from=tier)
        self._window_first = step
        self.unwritten = dict(unwritten)
        # The clock starts after the restore, so that the first step time excludes it.
        self._window_start = time.monotonic()
        self.instruments.begin(step)
        # The first heartbeat after a restore is sent at once.
        self._mark = True

    def enter(self, phase: Phase, *, micro_batch: int | None = None) -> None:
        """Begin a phase."""
        if micro_batch not in (None, self.figures.micro_batch):
            self._set(micro_batch=micro_batch)
        self.instruments.enter(phase)
        before_training = phase in (Phase.STARTING, Phase.RESTORING)
        # Start phases are short and rare, and their marks show where a start hangs. Send them at
        # once.
        self._beat(phase, now=self._mark or before_training)
        if not before_training:
            self._mark = False

    def progressed(self) -> None:
        """Report that a long phase makes progress, so that it is not taken for a hang.

        Call it often, when bytes were read or written. It sends at most one heartbeat in
        `heartbeat_seconds`.
        """
        # The limit keeps a read of many small files from flooding the agent.
        if time.monotonic() - self._last_beat >= self.config.heartbeat_seconds:
            self._beat(self._phase, now=False)

    def assembled(
        self,
        config: TrainerConfig,
        *,
        layout: Layout,
        stages: Iterable[nn.Module],
        state: Iterable[Tensor],
    ) -> None:
        """Note that the model is built: its bytes, the optimizer's, and the groups of ranks.

        Args:
            config: configuration with the number of steps that the data gives.
            layout: layout of the ranks.
            stages: modules of this rank.
            state: tensors of the optimizer.
        """
        self.config = config
        self._set(total_steps=config.steps)
        self.instruments.set_groups(layout, rank=self.placement.rank)
        # Ranks of one stage have the same work, so the heartbeat names the stage.
        rank = self.placement.rank
        self._set(stage=layout.group_of(Axis.PIPELINE, rank).index(rank))
        self.instruments.memory.count_state(stages, state=state)

    def count_gradients(self, gradients: Iterable[Tensor]) -> None:
        """Count their bytes before they are freed, in steps that are reported."""
        # Gradients of unreported steps are not counted, since the walk over all tensors takes time.
        if self._reports(self.figures.step + 1):
            self.instruments.memory.count_gradients(gradients)

    def finish_step(
        self,
        step: int,
        *,
        losses: Mapping[int, float],
        gradient_norm: float,
        learning_rate: float | None = None,
        skipped_steps: int = 0,
        staleness: Staleness | None = None,
        rewards: Rewards | None = None,
    ) -> None:
        """Count a finished step, and report every `log_every_steps`.

        Args:
            step: finished steps.
            losses: newly known losses by step: none or several where ranks synchronize rarely.
            gradient_norm: before clipping.
            learning_rate: learning rate of the step.
            skipped_steps: number of skipped steps of the whole run.
            staleness: since all ranks last synchronized, where they do so rarely.
            rewards: rewards of the step's pairs, where there are any.
        """
        # The first step after a restore ends the start. The next heartbeat is sent at once.
        self._mark = self._mark or self.figures.step == self.figures.restored_step
        # Phase 1: the figures. A step without a loss of its own keeps the last known loss.
        self._set(
            step=step,
            loss=losses.get(step, self.figures.loss),
            gradient_norm=gradient_norm,
            micro_batch=0,
        )
        self.learning_rate, self.skipped_steps = learning_rate, skipped_steps
        # Staleness stays until the next synchronization. Rewards belong to one step.
        self.staleness, self.rewards = staleness or self.staleness, rewards
        # Phase 2: the losses wait in memory and travel with snapshots until they reach the file.
        self.unwritten.update(losses)
        self.instruments.finish_step(step)
        # Phase 3: the report reads the clock after the instruments have closed the step.
        if self._reports(step):
            self._report()

    def checkpointed(self, *, step: int, digest: str, seconds: float | None) -> None:
        """Report a checkpoint: committed after a stop of `seconds`, or restored (None).

        Args:
            step: step of the checkpoint.
            digest: SHA-256 of its manifest.
            seconds: time for which training stopped.
        """
        self._set(checkpoint_step=step, checkpoint_digest=digest)
        if seconds is not None:
            self._set(checkpoint_seconds=seconds)
        self._beat(Phase.CHECKPOINT if seconds is not None else Phase.RESTORING, now=True)

    @contextmanager
    def excluded_from_step_time(self) -> Generator[None]:
        """Wrap evaluations and the saving of checkpoints, whose time counts for no step."""
        began = time.monotonic()
        yield
        # A later start of the window shortens the measured time by the same amount.
        self._window_start += time.monotonic() - began

    def snapshot_taken(self, *, every_steps: int, seconds: float) -> None:
        """Report a snapshot. The next one follows after `every_steps`."""
        self._set(snapshot_every_steps=every_steps, snapshot_seconds=seconds)

    def done(self) -> None:
        """Send the last heartbeat and print the bottleneck."""
        self._beat(Phase.DONE, now=True)
        self.instruments.enter(Phase.DONE)
        # A run that stops before its second window has no totals and so no diagnosis.
        if any(self.instruments.totals.values()):
            self.print_line(f"bottleneck: {self._diagnose(self.instruments.totals).sentence}")
        if self.instruments.writes_metrics:
            self.print_line(f"figures: {self.instruments.folder}")

    def flush_losses(self) -> None:
        """Write the losses to the file."""
        if self.unwritten and self.losses_file is not None and self.placement.rank == 0:
            try:
                append_losses(self.losses_file, self.unwritten)
            except OSError as error:  # figures must not end a run that can go on without them
                logger.warning("%s: %s; tried again later", self.losses_file, error.strerror)
                return
        self.unwritten.clear()

    @property
    def _prints(self) -> bool:
        return self.placement.rank == 0 or self.config.metrics.log_ranks is LogRanks.ALL

    def _reports(self, step: int) -> bool:
        return step % self.config.log_every_steps == 0 or step == self.config.steps

    def _report(self) -> None:
        # Phase 1: save the losses first, because a crash in a later phase must not lose them.
        self.flush_losses()
        # Phase 2: the window's time. The bound 1e-9 avoids a division by zero on a coarse clock.
        elapsed = max(time.monotonic() - self._window_start, 1e-9)
        self._window_start += elapsed
        steps = self.figures.step - self._window_first
        step_seconds = elapsed / steps
        self._window_first = self.figures.step
        batch_tokens = self.config.global_batch_size * self.config.tokens_per_sample
        # Phase 3: collect resets the timer, so it must cover the same steps as the window.
        parts, self.memory = self.instruments.collect(steps=steps)
        self.part_comparison.add(parts, steps=steps)
        self._set(
            step_seconds=step_seconds,
            tokens_per_second=batch_tokens / step_seconds,
            step_parts=parts,
            measured_step=self.figures.step,
            # Every heartbeat carries them, so they are computed once for each report.
            memory_bytes=self.memory.by_category(),
            compared_parts=self.part_comparison.means(),
        )
        self._set(mfu=self._mfu())
        usual = self._usual_seconds if self.instruments.warmed_up else None  # not the first windows
        self._usual_seconds = smoothed(usual, step_seconds)
        # Phase 4: sinks, then lines. Every rank takes part, but only rank 0 has sinks.
        self._publish()
        if self._prints:
            (self.show or self.write)(self._progress())
            self._print_bottleneck()

    def _progress(self) -> str:
        return progress_line(
            step=self.figures.step,
            total_steps=self.config.steps,
            loss=self.figures.loss or 0.0,
            gradient_norm=self.figures.gradient_norm or 0.0,
            tokens_per_second=self.figures.tokens_per_second or 0.0,
            # The ETA is 0 until the first window has been measured.
            eta_seconds=(self.config.steps - self.figures.step) * (self._usual_seconds or 0.0),
            mfu=self._mfu(),
            staleness=self.staleness,
            rewards=self.rewards,
        )

    def _publish(self) -> None:
        """Write the figures of this window to the sinks."""
        parts = self.figures.step_parts
        # A window without measured parts or memory gives no record, because the diagnosis needs
        # both.
        if not parts or not any(parts.values()) or self.memory is None:
            return
        # The record holds the diagnosis, so readers of the file need not repeat the rules.
        diagnosis = self._diagnose(parts)
        record = StepRecord(
            step=self.figures.step,
            loss=self.figures.loss or 0.0,
            learning_rate=self.learning_rate,
            gradient_norm=self.figures.gradient_norm or 0.0,
            tokens_per_second=self.figures.tokens_per_second or 0.0,
            step_seconds=self.figures.step_seconds or 0.0,
            mfu=self._mfu(),
            skipped_steps=self.skipped_steps,
            staleness=self.staleness,
            rewards=self.rewards,
            parts=parts,
            memory=self.memory.by_category(),
            bound=diagnosis.bound,
            verdict=diagnosis.sentence,
        )
        self.instruments.publish(record)

    def _print_bottleneck(self) -> None:
        """Print the bottleneck during the run, whenever it has changed."""
        # The last report is left to `done`, which prints the final sentence.
        if not self.instruments.warmed_up or self.figures.step == self.config.steps:
            return
        diagnosis = self._diagnose(self.instruments.totals)
        # Print on a change only: the same line every window would hide the progress lines.
        if diagnosis.bound != self._printed_bottleneck:
            self._printed_bottleneck = diagnosis.bound
            self.print_line(f"so far {diagnosis.sentence}")

    def _diagnose(self, parts: Mapping[str, float]) -> BottleneckDiagnosis:
        return diagnose(
            parts,
            mfu=self._mfu(),
            memory_share=None if self.memory is None else self.memory.used_share,
        )

    def _beat(self, phase: Phase, *, now: bool) -> None:
        self._phase, self._last_beat = phase, time.monotonic()
        # The clock above is set even without an agent, because `progressed` reads it.
        if self.heartbeats is None:
            return
        # Monotonic seconds of this host. The agent only compares them with each other.
        self.heartbeats.send(self.figures, phase=phase, time_seconds=self._last_beat, now=now)

    def _set(self, **figures: Any) -> None:
        self.figures = replace(self.figures, **figures)

    def _mfu(self) -> float | None:
        return mfu_of_run(
            self.config,
            self.figures.tokens_per_second,
            devices=self.placement.world_size,
            peak=self.peak_flops,
        )
