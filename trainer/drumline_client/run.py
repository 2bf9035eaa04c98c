"""Join a job: `join` returns a script's handle of its job.

Outside Drumline (no DRUMLINE_AGENT in the environment), every call is a no-op that takes well under
a microsecond. The same script therefore runs on a laptop.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
from collections.abc import MutableMapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, SupportsFloat

from drumline_client.connection import AgentConnection
from drumline_client.environment import (
    AGENT_VARIABLE,
    SNAPSHOTS_VARIABLE,
    RankPlace,
    SnapshotPlace,
    rank_place,
)
from drumline_client.save_point import BoundaryAnswer, SavePoint
from drumline_client.snapshot_file import SnapshotError
from drumline_client.wire import (
    VERSION,
    AgentMessage,
    ClientMessage,
    Hello,
    JoinRefused,
    PartBegun,
    PartSaved,
    ProposalMissed,
    RestoreFailed,
    StepReport,
    Welcome,
    WorkDone,
)

# it imports torch
if TYPE_CHECKING:
    from drumline_client.state_snapshots import StateSnapshots

__version__ = "1.2"
_LOG: Final = logging.getLogger("drumline_client")
PHASES: Final = frozenset(
    ("starting", "restoring", "data", "training", "evaluating", "saving", "done")
)
TENSOR_SECONDS: Final = 5.0
"""Minimum seconds between two reads of a loss that is not a Python number. Reading it waits for the
device."""


class Run(AbstractContextManager["Run"]):
    """One process of a job.

    Call its methods from the training thread. They survive a lost agent.
    """

    def __init__(
        self, path: str | None, *, place: RankPlace, snapshots: SnapshotPlace | None = None
    ) -> None:
        """Connect to the agent at this socket. None: outside Drumline.

        Args:
            path: path of the socket.
            place: rank of this process.
            snapshots: snapshots of this attempt. None: the pod has none.
        """
        self.rank = place.rank
        self.world_size = place.world_size
        self._place = place
        self._step = -1
        self._loss: float | None = None
        # Monotonic time of the last call. The agent detects a hang from its age.
        self._at = time.monotonic()
        self._tokens = 0
        self._total_steps: int | None = None
        self._phase = "starting"
        self._saves = False
        # -inf: the first loss is always read.
        self._read_loss_at = -math.inf
        self._welcome = Welcome(v=VERSION)
        self._save_point = SavePoint()
        self._restored_step: int | None = None
        self._snapshot_place = snapshots
        self._snapshots: StateSnapshots | None = None
        self._agent: AgentConnection | None = None
        if path:
            self._agent = AgentConnection(
                path,
                hello=self._hello,
                newest_report=self._report,
                on_message=self._hear,
                on_lost=self._save_point.forget,
            )
            self._agent.open()
            # A program can exit between two periodic reports.
            atexit.register(self._report_last)

    def __exit__(self, *error: object) -> None:
        """Call `done` if the `with` block ends without an exception."""
        # An exception is a failure of the work, so the agent must not see `done`.
        if error[0] is None:
            self.done()

    @property
    def inside(self) -> bool:
        """Return whether this process runs under an agent of Drumline."""
        return self._agent is not None and not self._agent.closed

    @property
    def restarts(self) -> int:
        """Return how often the ranks of this job were started before."""
        return self._welcome.restarts

    @property
    def resized(self) -> bool:
        """Return whether the previous ranks had another world size.

        The batch size or the learning rate may depend on it.
        """
        # None on the first start: there are no previous ranks to compare with.
        return self._welcome.previous_world_size not in (None, self.world_size)

    @property
    def checkpoint(self) -> tuple[int, str] | None:
        """Return step and path of the newest complete checkpoint of the job, if known."""
        step = self._welcome.checkpoint_step
        return None if step is None else (step, self._welcome.checkpoint_path)

    def expect(self, total_steps: int) -> None:
        """Set the total number of steps of the run, for expected ends and backfilling."""
        self._total_steps = int(total_steps)

    def step(self, step: int, *, loss: SupportsFloat | None = None, tokens: int = 0) -> None:
        """Report that an optimizer step is finished, counted over the whole run.

        Args:
            step: larger than the previous step, and the same on all ranks.
            loss: number, or a tensor, which is read at most every TENSOR_SECONDS.
            tokens: this rank's tokens in this step. Ranks that share a batch count it once.
        """
        if self._agent is None:
            return
        # These assignments are all that a step costs. The connection's thread sends them.
        self._at = now = time.monotonic()
        self._step = int(step)
        self._phase = "training"
        # A running total: a dropped report loses no tokens.
        self._tokens += int(tokens)
        if isinstance(loss, (float, int)):
            self._loss = float(loss)
        # Reading a device tensor synchronizes, so it happens at most every TENSOR_SECONDS.
        elif loss is not None and now >= self._read_loss_at:
            self._read_loss_at = now + TENSOR_SECONDS
            self._loss = _number(loss)

    def should_save(self) -> bool:
        """Return whether to save now, because of a leaving node, a preemption or a drain.

        Call it on every rank after each `step`, or each n-th. It returns True on all ranks at the
        same step. Call `saved` afterwards.
        """
        if self._agent is None or self._agent.closed:
            return False
        # The first call tells the agent that this script can save on request.
        self._saves = True
        self._at = time.monotonic()
        answer = self._save_point.ask(self._step)
        if answer is BoundaryAnswer.MISSED:
            # The agent must hear of a missed proposal, or it waits for a part that never comes.
            self._agent.deliver(ProposalMissed(id=self._save_point.missed_id))
        elif answer is BoundaryAnswer.SAVE:
            self._phase = "saving"
        return answer is BoundaryAnswer.SAVE

    def should_stop(self) -> bool:
        """Return whether the pods are released after this save. It is True on all ranks at once.

        A script may then end its loop. Otherwise it is stopped when the save is complete.
        """
        return self._save_point.leaving

    def saving(self, step: int) -> None:
        """Report that this rank continues while its part of a checkpoint is written.

        Call `saved` later.
        """
        if self._agent is None:
            return
        self._deliver(PartBegun(step=int(step)))

    def saved(self, step: int, path: str | os.PathLike[str] = "", *, error: str = "") -> None:
        """Report that this rank's part of a step's checkpoint is written, or failed with `error`.

        Call it on every rank that saves, for every checkpoint, also those of the script's own
        schedule. The checkpoint is complete when no rank's part is missing. A rank that continued
        to a later step without `saving` has no part.

        Args:
            step: number of finished steps.
            path: folder or file of the checkpoint.
            error: why the save failed. Empty: it succeeded.
        """
        if self._agent is None:
            return
        # A script that saved on its own schedule keeps its phase.
        if self._phase == "saving":
            self._phase = "training"
        self._deliver(PartSaved(step=int(step), path=str(path), error=error))

    def snapshot(self, state: MutableMapping[str, Any], *, step: int | None = None) -> float:
        """Keep the state of a step in the memory of the pod and, soon after, of a peer.

        Call it on every rank at the same steps, after `step`. It copies the tensors and returns. A
        thread writes the copy. If the previous snapshot is not written yet, the call waits.

        Args:
            state: tensors, DTensors (this rank's shard of each), arrays, numbers, texts, lists and
                dicts of them, and objects with `state_dict` and `load_state_dict`.
            step: default: the newest `step`.

        Returns:
            Seconds for which training paused. 0 outside Drumline.

        Raises:
            TypeError: a value cannot be rebuilt. The message names its path.
            ValueError: no step was finished, or a newer step has a snapshot.
        """
        snapshots = self._open_snapshots()
        if snapshots is None:
            return 0.0
        number = self._step if step is None else int(step)
        if number < 0:
            raise ValueError(
                "snapshot before the first step: call run.step(n) first, or pass step=n"
            )
        # The clock is set before and after, since a snapshot can take longer than the agent's hang
        # limit.
        self._at = time.monotonic()
        seconds = snapshots.take(number, state)
        self._at = time.monotonic()
        return seconds

    def restore(self, state: MutableMapping[str, Any]) -> int | None:
        """Fill the state from the newest snapshot that all ranks have.

        Tensors are filled in place. Objects with `load_state_dict` load their part, and other
        values of the mapping are replaced. The random states of Python, numpy and torch are also
        restored.

        Returns:
            The finished step of the snapshot. None without a snapshot, or if `saved` reported a
                newer checkpoint. The state is then unchanged.

        Raises:
            SnapshotError: this rank's snapshot is damaged, or has another state. Let it end the
                process. All ranks then start again, with an older snapshot or none.
        """
        # Phase 1: a renumbered rank must not load the state of another one.
        self._reject_foreign_snapshot()
        snapshots = self._open_snapshots()
        if snapshots is None:
            return None
        # Phase 2: keep the phase for the case that there is nothing to restore.
        phase, self._phase, self._at = self._phase, "restoring", time.monotonic()
        step = snapshots.restore(state)
        if step is None:
            self._phase = phase
        else:
            # Phase 3: reports continue from the restored step.
            self._step = self._restored_step = step
        return step

    def _reject_foreign_snapshot(self) -> None:
        """Reject the snapshot of another rank.

        A launcher may number its ranks differently than before. The other ranks would continue
        alone.
        """
        place = self._snapshot_place
        if place is None or place.restore_step is None or place.fits(self._place):
            return
        error = f"rank {self.rank} of {self.world_size} was in another pod before"
        # The message makes all ranks start again, not only this one.
        self._deliver(RestoreFailed(step=place.restore_step, error=error))
        raise SnapshotError(error)

    def _open_snapshots(self) -> StateSnapshots | None:
        if self._snapshot_place is None or not self.inside:
            return None
        # A launcher chose another order, so the agents would look for the files in the wrong pod.
        if not self._snapshot_place.fits(self._place):
            _LOG.warning(
                "no snapshots: rank %s of %s is not where the agents look for it; a launcher"
                " must start one rank per GPU, in the order of the pods",
                *(self.rank, self.world_size),
            )
            # Forget the place, so that the warning appears once.
            self._snapshot_place = None
            return None
        if self._snapshots is None:
            # only a program that has torch comes here
            from drumline_client.state_snapshots import (  # noqa: PLC0415 - imports torch
                StateSnapshots,
            )

            self._snapshots = StateSnapshots(
                self._snapshot_place, rank=self._place, deliver=self._deliver
            )
        return self._snapshots

    def phase(self, name: str) -> None:
        """Report what this rank does until its next `step`: one of PHASES.

        Raises:
            ValueError: the name is unknown.
        """
        if name not in PHASES:
            raise ValueError(f"unknown phase {name!r}: want one of {', '.join(sorted(PHASES))}")
        self._phase = name
        self._at = time.monotonic()

    def done(self) -> None:
        """Report that this rank is complete: no save waits for it. Its exit code still counts."""
        self._phase = "done"
        self._report_last()
        self._deliver(WorkDone())

    def _deliver(self, message: ClientMessage) -> None:
        if self._agent is not None:
            self._at = time.monotonic()
            self._agent.deliver(message)

    def _report_last(self) -> None:
        """Send the newest step before the process exits, because the last report may be older."""
        if self._agent is not None:
            # The queued report overtakes the periodic one, which may come too late.
            self._agent.deliver(self._report())

    def _hello(self) -> Hello:
        return Hello(
            v=VERSION,
            pid=os.getpid(),
            rank=self.rank,
            local_rank=self._place.local_rank,
            world_size=self.world_size,
            answered=self._save_point.answered,
            client=__version__,
        )

    def _report(self) -> StepReport:
        return StepReport(
            at=self._at,
            phase=self._phase,
            saves=self._saves,
            # -1 is no step on the wire: the field is absent until the first step.
            step=None if self._step < 0 else self._step,
            tokens=self._tokens,
            loss=self._loss,
            total_steps=self._total_steps,
            restored_step=self._restored_step,
            # JSON has no NaN, so the kind of the value is a text.
            not_finite=_not_finite(self._loss),
        )

    def _hear(self, message: AgentMessage) -> ClientMessage | None:
        """Process a message in the connection's thread."""
        if isinstance(message, Welcome):
            self._welcome = message
        # The welcome of a reconnect replaces the former one: restarts and checkpoint can differ.
        elif isinstance(message, JoinRefused):
            self._save_point.forget()
        else:
            return self._save_point.hear(message)
        return None


class _Joined:
    """Run of this process, which a script and its adapter share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run: Run | None = None
        # A forked data worker must not report as its parent.
        os.register_at_fork(after_in_child=self._forget)

    def get(self, *, rank: int | None, world_size: int | None) -> Run:
        with self._lock:
            if self._run is None:
                place = rank_place(os.environ, rank=rank, world_size=world_size)
                snapshots = os.environ.get(SNAPSHOTS_VARIABLE)
                self._run = Run(
                    os.environ.get(AGENT_VARIABLE),
                    place=place,
                    snapshots=SnapshotPlace.parse(snapshots) if snapshots else None,
                )
            return self._run

    def _forget(self) -> None:
        """Reset the run in a forked child, which may be a rank of its own.

        The parent may hold the lock.
        """
        self._lock = threading.Lock()
        self._run = None


_JOINED: Final = _Joined()


def join(*, rank: int | None = None, world_size: int | None = None) -> Run:
    """Join the job. Return the same `Run` each time in a process.

    Args:
        rank: rank, if the launcher's variables (torchrun, mpirun, srun) do not contain it.
        world_size: world size, in the same case.
    """
    return _JOINED.get(rank=rank, world_size=world_size)


def _not_finite(loss: float | None) -> str:
    """Return nan or inf if the loss is one of these."""
    return "" if loss is None or math.isfinite(loss) else "nan" if math.isnan(loss) else "inf"


def _number(loss: Any) -> float | None:
    """Return the value of a tensor or a number, or None if it has no single value."""
    try:
        # detach avoids the autograd warning for tensors that require gradients.
        return float(loss.detach() if hasattr(loss, "detach") else loss)
    except (TypeError, ValueError, RuntimeError):
        return None
