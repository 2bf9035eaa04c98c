"""Track one simulated job: its work, the saved part of it, and the use of its time.

Work is counted in seconds at full size, so an elastic gang with half of its pods takes twice as
long. A running job works all the time except for checkpoints and snapshots. Work in a checkpoint is
never lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from drumline_scheduler import Admitted, Gang
from drumline_simulator.engine.job_split import JobSplit
from drumline_simulator.results.time_account import Cause, TimeAccount
from drumline_simulator.workload import Arrival, Execution


class Stall(StrEnum):
    """Reason that a job with nodes makes no progress. Values are fields of TimeAccount."""

    IDLE = "idle"
    SAVING = "saving"
    RESTARTING = "restarting"


class SimulatedJob:
    """The mutable state of one job.

    Args:
        arrival: the job and its time of submission.
        index: number of the job.
        execution: times of starts, saves and recoveries.
        is_mixed: whether its surplus uses another pool.
    """

    # Slots, because a trace may have tens of thousands of jobs.
    __slots__ = (
        "_execution",
        "_settled_at",
        "_stalls",
        "account",
        "admitted",
        "allocated_at",
        "arrival",
        "cause",
        "committed",
        "ended_at",
        "gang",
        "held_seconds",
        "index",
        "not_useful",
        "preempted_at",
        "refreshed_at",
        "split",
        "started_at",
        "version",
        "work",
    )

    def __init__(
        self, *, arrival: Arrival, index: int, execution: Execution, is_mixed: bool = False
    ) -> None:
        self.arrival = arrival
        self.index = index
        self.split = JobSplit(is_mixed=is_mixed)
        self.gang: Gang = self.split.gang_of(arrival.gang)
        """Gang of the next snapshot."""
        self.admitted: Admitted | None = None
        """All places. Surplus places are last."""
        self.work = 0.0
        """Seconds of work at the time of the last `settle`."""
        self.committed = 0.0
        """Seconds of work in the newest checkpoint at the same time."""
        self.account = TimeAccount()
        self.not_useful: dict[Cause, float] = {}
        """GPU-seconds that it held and that were not useful, by cause."""
        self.cause = Cause.START
        """Cause of the next time without progress."""
        self.version = 0
        """Incremented whenever the expected end changes. Events of older versions are stale."""
        self.allocated_at = 0.0
        self.refreshed_at = 0.0
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.held_seconds = 0.0
        self.preempted_at: list[float] = []
        # The trace's own interval wins, because users know their jobs' checkpoints.
        own = arrival.checkpoint_seconds
        self._execution = execution if own is None else replace(execution, checkpoint_seconds=own)
        self._settled_at = 0.0
        self._stalls: list[tuple[Stall, float, Cause]] = []

    @property
    def is_shrinking(self) -> bool:
        """Return whether some of its positions got notice while it runs on the others."""
        return self.admitted is not None and bool(self.admitted.giving_up)

    @property
    def is_leaving(self) -> bool:
        """Return whether the whole job got notice."""
        return self.admitted is not None and self.admitted.leaving

    @property
    def total_work(self) -> float:
        """Return all its work in seconds, up to its maximum runtime."""
        # The operator ends a job at its maximum runtime, so work beyond it never happens.
        limit = self.arrival.gang.max_runtime_seconds
        duration = self.arrival.duration_seconds
        return duration if limit is None else min(duration, limit)

    def done(self, now: float) -> float:
        """Return the seconds of work done."""
        if self._is_stalled:
            return self.work
        running = max(0.0, now - self._runs_from)
        # The clamp hides the last microsecond, by which a rounded end may be late.
        return min(self.total_work, self.work + running * self._speed)

    def ends_at(self) -> float:
        """Return the time at which all work is done at the current rate."""
        return self._runs_from + (self.total_work - self.work) / self._speed

    def start(
        self, *, admitted: Admitted, now: float, stalls: Sequence[tuple[Stall, float]]
    ) -> None:
        """Start or continue with an assignment.

        Args:
            admitted: the assignment.
            now: time of the assignment.
            stalls: kinds and seconds of the time before it makes progress.
        """
        self.settle(now)
        if self.started_at is None:
            # The first start only: later waits follow from `held_seconds`.
            self.started_at = now
        self.admitted = admitted
        self._stalls = []
        for stall in stalls:
            # Nothing but a boot leaves a job idle after its start.
            cause = Cause.BOOT if stall[0] is Stall.IDLE else self.cause
            self.stall([stall], now=now, cause=cause)
        # All three clocks restart: the time before belongs to the previous allocation.
        self.allocated_at = self.refreshed_at = self._settled_at = now
        self.version += 1

    def stall(
        self, stalls: Sequence[tuple[Stall, float]], *, now: float, cause: Cause | None = None
    ) -> None:
        """Make no progress for some seconds, after the current stalls.

        Args:
            stalls: kinds and seconds, in order.
            now: seconds of the virtual clock.
            cause: cause of all of them. None: `self.cause`.
        """
        # Stalls queue up: a save during a restart follows it.
        until = self._stalls[-1][1] if self._stalls else now
        for kind, seconds in stalls:
            until += seconds
            self._stalls.append((kind, until, cause or self.cause))

    def settle(self, now: float) -> None:
        """Charge the time since the last call, and count the work in it."""
        # Phase 1: the interval since the last call. A second call at the same time does nothing.
        held, begin = self.admitted, self._settled_at
        self._settled_at = max(now, begin)
        if held is None or now <= begin:
            return
        # Phase 2: without all its places or after a notice, the job makes no progress.
        if held.lost or held.leaving:
            kind = Stall.IDLE if held.lost else Stall.SAVING
            self._charge(kind, seconds=now - begin, cause=self.cause)
            return
        done = self.work
        # Phase 3: charge each stall up to now, in order.
        for kind, until, cause in self._stalls:
            end = min(until, now)
            if end > begin:
                self._charge(kind, seconds=end - begin, cause=cause)
                begin = end
        self._stalls = [each for each in self._stalls if each[1] > now]
        # Phase 4: the remaining time is running time, which holds work and its overhead.
        running = now - begin
        self.work = min(self.total_work, done + running * self._speed)
        # Work is in seconds at full size, so its GPU-seconds use all GPUs of the gang.
        useful = (self.work - done) * self.arrival.gang.gpus
        self.account.useful += useful
        # The difference is the time of checkpoints and snapshots.
        saving = running * held.gpus - useful
        self.account.saving += saving
        self._count(saving, cause=Cause.SAVES)
        period = self._execution.checkpoint_seconds
        # Checkpoints are periodic in work, not in time: a stalled job writes none.
        self.committed += (self.work - self.committed) // period * period

    def save(self, now: float, *, seconds: float = 0.0) -> None:
        """Save all work done by now, for which training has stopped for the last `seconds`."""
        self.settle(now)
        # They were charged as useful before: the job might have moved or ended instead.
        stopped = min(self.work - self.committed, seconds * self._speed)
        self.work -= stopped
        gpu_seconds = stopped * self.arrival.gang.gpus
        self.account.useful -= gpu_seconds
        self.account.saving += gpu_seconds
        self._count(gpu_seconds, cause=self.cause)
        self.committed = self.work

    def roll_back(self, *, now: float, to_snapshot: bool) -> None:
        """Lose all work since the last checkpoint, or since the last snapshot if there is one."""
        self.settle(now)
        period = self._execution.snapshot_seconds
        # Snapshots are kept between checkpoints, so their grid starts at the last checkpoint.
        kept = self.committed
        if to_snapshot and period is not None:
            kept += (self.work - kept) // period * period
        lost = (self.work - kept) * self.arrival.gang.gpus
        # Lost work was charged as useful before. It moves to `lost`, and the sum stays.
        self.account.lost += lost
        self.account.useful -= lost
        self._count(lost, cause=self.cause)
        self.work = kept

    def work_at_risk(self, now: float) -> float:
        """Return the GPU-seconds of work since the last checkpoint."""
        done = self.done(now) - self.committed
        # Modulo the interval: `settle` may not have counted the newest checkpoint yet.
        return done % self._execution.checkpoint_seconds * self.arrival.gang.gpus

    def displace(self, node: str) -> None:
        """Mark its positions on a node as leaving. The job runs on meanwhile."""
        if self.admitted is not None:
            displaced = self.admitted.displaced | self.positions(node)
            self.admitted = replace(self.admitted, displaced=displaced)

    def positions(self, node: str) -> frozenset[int]:
        """Return its positions on a node."""
        assignment = self.admitted.assignment if self.admitted else ()
        return frozenset(i for i, name in enumerate(assignment) if name == node)

    def requeue(self, now: float) -> None:
        """Release all nodes. The gang is pending again at its old position in the queue."""
        self.settle(now)
        self.admitted = None
        self._stalls = []
        self.version += 1
        limit = self.arrival.gang.max_runtime_seconds
        # The scheduler plans with the remaining time, which includes another restart.
        left = None if limit is None else limit - self.work + self._execution.restart_seconds
        self.gang = self.split.gang_of(replace(self.arrival.gang, max_runtime_seconds=left))

    def end(self, now: float) -> None:
        """Release all nodes, because all work is done."""
        self.settle(now)
        self.committed = self.work
        self.admitted = None
        self.ended_at = now
        self.version += 1

    @property
    def _is_stalled(self) -> bool:
        return self.admitted is None or bool(self.admitted.lost) or self.admitted.leaving

    @property
    def _runs_from(self) -> float:
        # The later of both: a job works only when its last stall is over.
        return max(self._settled_at, self._stalls[-1][1] if self._stalls else 0.0)

    @property
    def _speed(self) -> float:
        """Return the seconds of work per second of running."""
        size = 1.0 if self.admitted is None else self.admitted.size / self.arrival.gang.nodes
        # `work_share` takes the overhead of checkpoints and snapshots from each second.
        return size * self._execution.work_share

    def _count(self, gpu_seconds: float, *, cause: Cause) -> None:
        if gpu_seconds:
            self.not_useful[cause] = self.not_useful.get(cause, 0.0) + gpu_seconds

    def _charge(self, kind: Stall, *, seconds: float, cause: Cause) -> None:
        # A pending job holds no GPUs, so its time costs nothing.
        gpu_seconds = seconds * (self.admitted.gpus if self.admitted else 0)
        self._count(gpu_seconds, cause=cause)
        match kind:
            case Stall.IDLE:
                self.account.idle += gpu_seconds
            case Stall.SAVING:
                self.account.saving += gpu_seconds
            case Stall.RESTARTING:
                self.account.restarting += gpu_seconds
