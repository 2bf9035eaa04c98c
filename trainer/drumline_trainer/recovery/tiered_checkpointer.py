"""Saves a run to two tiers, memory and storage, and restores it from the best one.

There are two kinds of copies. Snapshots in memory (`recovery.rank_snapshots`) are frequent and
cheap, for the same ranks. Checkpoints on shared storage (`checkpoint`) are rare and durable, for
any number of ranks. A restore takes the snapshot that the agents chose, otherwise the newest
verified checkpoint, otherwise the initial weights.

A checkpoint is written in the background (`checkpoint.background_save`) and committed some steps
later, once all ranks are ready. Only then it is reported. Training waits for the checkpoint of the
last step and for those of notices.

A notice (spot, maintenance, preemption) requests a checkpoint now. Agents forward it to their ranks
at different moments, so no rank acts alone. Each rank adds its vote to the all-reduce of the step,
with whether its part of the pending save is done. If a vote has a notice, all ranks gather the ids
of their notices. They act once every rank has one, at that step boundary. A withdrawn notice no
longer counts:

    step 41: rank 0 has notice n, rank 1 has none   -> train on
    step 42: both have one                          -> save step 42, answer n, leave if asked to
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

import torch
import torch.distributed as dist

from drumline_agent.rank_protocol.control import Control
from drumline_agent.rank_protocol.heartbeat import Phase
from drumline_agent.rank_protocol.messages import NoticeSaved
from drumline_agent.rank_protocol.orders import SaveNotice
from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import RestoreTier
from drumline_contract.config import Offload, TrainerConfig
from drumline_trainer.checkpoint.checkpointer import Checkpointer, SavedCheckpoint
from drumline_trainer.metrics.reporter import RunReporter
from drumline_trainer.recovery.background_exports import BackgroundExports
from drumline_trainer.recovery.rank_snapshots import RankSnapshots
from drumline_trainer.recovery.saved_state import check_state
from drumline_trainer.recovery.snapshot_interval import SnapshotInterval
from drumline_trainer.sharding.byte_collectives import Accepted, Rejected, agree, gather_bytes
from drumline_trainer.sharding.slices import TensorSlice

_READY = 1 << 20
"""Vote of a rank that is ready to advance a save. A rank that has a notice adds 1."""

logger = logging.getLogger(__name__)


class PreemptedError(Exception):
    """The run was saved after a notice and leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingPoint:
    """The state from which training continues."""

    step: int
    tier: RestoreTier
    trainer: Mapping[str, Any]
    """The trainer's own state as it was saved."""
    digest: str = ""
    """Digest of the manifest, if it is a checkpoint."""


INITIAL_STATE = StartingPoint(step=0, tier=RestoreTier.INITIAL, trainer={"cursor": 0})


@dataclass(slots=True, kw_only=True)
class TieredCheckpointer:
    """Copies of one rank in one membership.

    Collective but for `vote`, `finish_copy` and `check_membership`.
    """

    config: TrainerConfig
    placement: Placement
    device: torch.device
    reporter: RunReporter
    control: Control | None = None
    _slices: Sequence[TensorSlice] = ()
    _checkpoints: Checkpointer | None = None
    _snapshots: RankSnapshots | None = None
    _pace: SnapshotInterval = field(default_factory=SnapshotInterval)
    _step_began: float = 0.0
    _notice: SaveNotice | None = None
    """Agreed on at the present step boundary."""
    _asked: bool = False
    """A checkpoint is wanted at the present step boundary."""
    _all_ready: bool = False
    """True if all ranks can advance the pending save."""
    _saved: SavedCheckpoint | None = None
    _exports: BackgroundExports | None = None
    """On rank 0 only. None: no exports."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Complete a pending snapshot, from which the next membership may resume."""
        if self._checkpoints is not None:
            self._checkpoints.cancel()
            self._checkpoints.leave(done=kind is None)
        if self._exports is not None:
            self._exports.cancel()
        if self._snapshots is not None:
            with suppress(OSError):
                self._snapshots.finish()

    def restore(self, slices: Sequence[TensorSlice]) -> StartingPoint:
        """Fill the slices from the best copy there is, and save them from now on.

        Raises:
            CheckpointError, ConfigError: see `checkpoint`.
        """
        self._slices = slices
        # 1. Claim the storage, even if a snapshot is restored: a former owner must not commit.
        self._checkpoints = Checkpointer.open(
            self.placement,
            keep=self.config.checkpoint.keep,
            device=self.device,
            continue_from=self.config.checkpoint.continue_from,
            progress=self.progressed,
        )
        exports = BackgroundExports.of(
            self.config,
            folder=self.placement.checkpoint_folder,
            print_line=self.reporter.print_line,
        )
        self._exports = exports if self.placement.rank == 0 else None
        if self.placement.snapshot_folder is not None:
            self._snapshots = RankSnapshots(
                slices,
                config=self.config,
                placement=self.placement,
                device=self.device,
                tell=self.reporter.send_event,
            )
        # 2. Newest state first. All ranks take the same branch, because each restore agrees.
        start = self._from_snapshot() or self._from_checkpoint() or INITIAL_STATE
        # 3. Snapshots after this step belong to an abandoned history.
        if self._snapshots is not None:
            self._snapshots.remove_unusable(after=start.step)
        self._pace = SnapshotInterval(fixed=self.config.checkpoint.snapshot_every_steps)
        self._pace.begin(start.step)
        self._step_began = time.monotonic()
        return start

    def done(self) -> None:
        """Wait for the export of the last checkpoint, if any, and report the end of the run."""
        if self._exports is not None:
            self._exports.finish(self.progressed)
        self.reporter.done()

    def progressed(self) -> None:
        """Report progress between pieces of a long restore or save, and leave if told to."""
        if self.control is not None:
            self.control.check()
        self.reporter.progressed()

    def check_membership(self) -> None:
        """Raise InterruptedByAgentError once this membership has been ended."""
        if self.control is not None:
            self.control.check()

    @property
    def vote(self) -> int:
        """This rank's vote before the step boundary. `due` needs the sum of all votes."""
        asked = self.control is not None and self.control.notice is not None
        ready = self._checkpoints is not None and self._checkpoints.ready
        return int(asked) + _READY * int(ready)

    def finish_copy(self) -> None:
        """Wait until a save that has begun has copied the state. Call it before each update."""
        if self._checkpoints is not None:
            with self.reporter.excluded_from_step_time():
                self._checkpoints.finish_copy()

    def due(self, step: int, *, votes: int, asked: bool = False) -> bool:
        """Return whether there is anything to save or to advance after this step.

        Call it at every step boundary at which all ranks synchronize. All ranks must get equal
        arguments.

        Args:
            step: finished.
            votes: sum over all ranks.
            asked: save a checkpoint before anything follows, whatever the interval.
        """
        self._asked = asked
        self._pace.measure_step(time.monotonic() - self._step_began, to=step)
        # The sum carries two counts: ranks that are ready, and ranks with a notice.
        ready, notices = divmod(votes, _READY)
        self._all_ready = ready == self.placement.world_size
        self._notice = self._common_notice() if notices else None
        due = self._snapshot_due(step) or self._checkpoint_due(step)
        self._step_began = time.monotonic()
        return due or self._all_ready or self._notice is not None

    def save(self, step: int, *, trainer: Mapping[str, Any]) -> None:
        """Make the copies that are due after this step, and advance a pending one.

        Raises:
            PreemptedError: a notice asked to leave once saved.
            SaveError: nothing was committed, of this or of an earlier step.
            StaleMembershipError: likewise, because a later membership owns the storage.
        """
        if self._snapshot_due(step):
            self._take_snapshot(step, trainer=trainer)
        # Advance first: the writer's buffer is free again before a new save begins.
        with self.reporter.excluded_from_step_time():
            if self._all_ready:
                self.reporter.enter(Phase.CHECKPOINT)
                self._advance()
            if self._checkpoint_due(step) or (self._notice and self._checkpoints):
                self._checkpoint(step, trainer=trainer)
        if self._notice is not None:
            self._answer(self._notice)
        self._step_began = time.monotonic()

    def _from_snapshot(self) -> StartingPoint | None:
        step, floor = self.placement.restore_snapshot, self.placement.acknowledged_step
        if self._snapshots is None or step is None or step < (floor or 0):
            return None
        match self._snapshots.restore(step, agree=lambda vote: agree(vote, device=self.device)):
            case Rejected(reason):
                self.reporter.print_line(f"snapshot of step {step} is not used: {reason}")
                return None
            case header:
                tier = RestoreTier.MEMORY
                return StartingPoint(step=header.step, tier=tier, trainer=header.trainer)

    def _from_checkpoint(self) -> StartingPoint | None:
        if self._checkpoints is None:
            return None
        restored = self._checkpoints.restore(
            self._slices,
            placement=self.placement,
            check=lambda trainer: check_state(trainer, config=self.config),
        )
        if restored is None:
            return None
        return StartingPoint(
            step=restored.step,
            tier=RestoreTier.STORAGE,
            trainer=restored.trainer,
            digest=restored.digest,
        )

    def _snapshot_due(self, step: int) -> bool:
        if self._snapshots is None or self._asked:
            return False
        return step >= self._pace.next_step and step < self.config.steps

    def _checkpoint_due(self, step: int) -> bool:
        """Return True every n steps, after the last one, and when the loop asks."""
        return self._checkpoints is not None and (
            self._last_or_asked(step) or step % self.config.checkpoint.every_steps == 0
        )

    def _last_or_asked(self, step: int) -> bool:
        """Return whether training must wait for the checkpoint of this step."""
        return self._asked or step == self.config.steps

    def _take_snapshot(self, step: int, *, trainer: Mapping[str, Any]) -> None:
        assert self._snapshots is not None  # noqa: S101 - it is due
        self.reporter.enter(Phase.SNAPSHOT)
        state = {**trainer, "losses": list(self.reporter.unwritten.items())}
        seconds = 0.0
        try:
            seconds = self._snapshots.take(step, trainer=state, check=self.check_membership)
        except OSError as error:  # of the snapshot before; this step's is left out
            logger.warning("rank %d: no snapshot: %s", self.placement.rank, error)
        replicated = self.control.replicated if self.control is not None else None
        cost, copied = self._snapshots.costs(seconds, replicated=replicated)
        proposal = self._pace.propose(cost_seconds=cost, copy_seconds=copied)
        # All ranks take snapshots at the same steps, so the slowest rank's proposal counts.
        agreed = torch.tensor([proposal], device=self.device)
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
        self._pace.adopt(int(agreed), at=step)
        self.reporter.snapshot_taken(every_steps=self._pace.every_steps, seconds=seconds)

    def _checkpoint(self, step: int, *, trainer: Mapping[str, Any]) -> None:
        assert self._checkpoints is not None  # noqa: S101 - it is due
        self.reporter.enter(Phase.CHECKPOINT)
        self.reporter.flush_losses()
        self._finish()
        if self._in_background and not self._last_or_asked(step) and self._notice is None:
            self._checkpoints.begin(step=step, slices=self._slices, trainer=trainer)
            if self.config.parallelism.asynchronous:  # pushes of others change what is copied
                self._checkpoints.finish_copy()
                agree(Accepted(), device=self.device)
        else:
            made = self._checkpoints.save(step=step, slices=self._slices, trainer=trainer)
            self._committed(made)

    @property
    def _in_background(self) -> bool:
        """True if checkpoints are written during training.

        State that is offloaded to a disk has no room in memory for a copy.
        """
        memory = self.config.memory
        away = Offload.NVME in (memory.offload_optimizer, memory.offload_parameters)
        return self.config.checkpoint.asynchronous and not away

    def _finish(self) -> None:
        """Wait for the save under way, if any."""
        assert self._checkpoints is not None  # noqa: S101 - one is due
        if self._checkpoints.pending_step is not None and self._notice is None:
            self.reporter.print_line(
                f"the checkpoint of step {self._checkpoints.pending_step} is still being written,"
                " training waits for it: checkpoint.every_steps may be too small"
            )
        while self._checkpoints.pending_step is not None:
            self._advance()

    def _advance(self) -> None:
        assert self._checkpoints is not None  # noqa: S101 - a save is under way
        if made := self._checkpoints.advance():
            self._committed(made)

    def _committed(self, saved: SavedCheckpoint) -> None:
        self._saved = saved
        self.reporter.checkpointed(step=saved.step, digest=saved.digest, seconds=saved.seconds)
        self.reporter.print_line(
            f"checkpoint of step {saved.step}: {saved.size_bytes / 1e6:,.0f} MB written in"
            f" {saved.write_seconds:.2f} s, training stood still for {saved.seconds:.3f} s"
        )
        if self._exports is not None:
            self._exports.committed(saved.step, self.progressed)

    def _common_notice(self) -> SaveNotice | None:
        """Return this rank's notice if every rank has one. The ids may differ.

        Pods that receive SIGTERM at the same moment make a notice each. Both request the same save.
        """
        own = self.control.notice if self.control is not None else None
        own_id = own.id if own is not None else ""
        ids = gather_bytes(own_id.encode(), device=self.device)
        return own if all(ids) else None

    def _answer(self, notice: SaveNotice) -> None:
        """Answer a notice once the checkpoint has been read back; leave if it asks to."""
        assert self.control is not None  # noqa: S101 - it brought the notice
        self.control.clear_notice(notice.id)
        if self._checkpoints is None or self._saved is None:
            no_folder = "the job has no checkpoint folder"
            self.reporter.send_event(NoticeSaved(notice=notice.id, error=no_folder))
            return
        saved = self._saved
        match self._checkpoints.read_back(saved):
            case Rejected(reason):
                self.reporter.send_event(NoticeSaved(notice=notice.id, error=reason[:1024]))
            case Accepted():
                self.reporter.send_event(
                    NoticeSaved(notice=notice.id, step=saved.step, digest=saved.digest)
                )
                if notice.leave:
                    raise PreemptedError(f"saved step {saved.step} on request, and left")
