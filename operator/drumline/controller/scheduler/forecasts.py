"""Compute when waiting jobs will probably start, beside the scheduler, at a separate pace.

A simulated forecast takes many cycles, so it runs in a thread on a frozen snapshot. Then it pauses
for `PAUSE_FACTOR` times as long as it took. So it uses at most a twentieth of one core, and a
larger cluster has older forecasts. While only the time changes, a forecast stays current
(`scheduler.forecast.forecast`). Shutdown does not wait for it: the thread stops within one of its
cycles.

A job without a simulated forecast, because it is new or far behind, gets a rough one in the cycle
that first rejects it (`add_rough_forecasts`). So its first status already contains one. All
forecasts are corrected by the accuracy of earlier ones. A new leader learns again from zero.

A new leader of a large cluster has ten thousand jobs to look at and gangs to start. The first
forecast waits until that is done, because its thread would take half of the only core that Python
uses. Until then the jobs show the forecasts of the previous leader.

The first forecast of each job is compared with its start, because users plan with it and later ones
are more accurate. A job that is deleted within a minute of its start is not counted.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from drumline.controller.queues.usage_history import QueueUsageHistory
from drumline.controller.scheduler.cycle_thread import CycleThread
from drumline.controller.state.cluster import ClusterCache
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline.telemetry import logs
from drumline.telemetry.metrics import FaultMetrics, ForecastMetrics
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.decisions import Blocked, GangFault
from drumline_scheduler.forecast.accuracy import StartForecast
from drumline_scheduler.forecast.correction import ForecastLearner, GroupedStart, grouped
from drumline_scheduler.forecast.expected_starts import ExpectedStart, expected_starts
from drumline_scheduler.forecast.forecast import Forecast
from drumline_scheduler.forecast.rough_starts import rough_starts
from drumline_scheduler.model import Gang, Policy, Snapshot
from drumline_scheduler.work import Work, counted

log = logs.get("drumline.controller.scheduler.forecasts")

INTERVAL_SECONDS = 60.0
PAUSE_FACTOR = 20
MOST_SECONDS = 60.0
"""Processor time of one forecast. After it, only its complete futures count."""


class Forecasts:
    """The newest forecast of every waiting job.

    Args:
        state: the caches.
        usage: usage history of the queues.
        policy: the administrator's scheduling policy.
        clock: seconds since the epoch.
        wake: wakes the scheduler, which writes the new forecasts.
        caught_up: returns when a new leader has processed its backlog.
        metrics: counts the accuracy of forecasts.
        forecaster: `expected_starts`, or a replacement in tests.
        faults: counts exceptions on one gang. None: they are only logged.
    """

    def __init__(
        self,
        *,
        state: ClusterCache,
        usage: QueueUsageHistory,
        policy: Policy,
        clock: Callable[[], float],
        wake: Callable[[], None],
        caught_up: Callable[[], Awaitable[None]],
        metrics: ForecastMetrics,
        forecaster: Callable[..., Sequence[ExpectedStart]] = expected_starts,
        faults: FaultMetrics | None = None,
    ) -> None:
        self._state = state
        self._usage = usage
        self._policy = policy
        self._clock = clock
        self._wake = wake
        self._caught_up = caught_up
        self._metrics = metrics
        self._forecaster = forecaster
        self._faults = faults
        self.set_aside: tuple[GangFault, ...] = ()
        """Faults of the last cycle. A forecast does not try these gangs again."""
        self._newest: Forecast | None = None
        self._simulated: dict[str, ExpectedStart] = {}
        """Forecasts as the forecaster returned them, by uid."""
        self._starts: dict[str, ExpectedStart] = {}
        """Corrected forecasts, including rough ones, by uid."""
        self._looked_at: set[str] = set()
        """Uids with a rough forecast, or that cannot have one, since the last simulated one."""
        self._learner = ForecastLearner()
        self._correction = self._learner.correction(0.0)
        self._first: dict[str, tuple[float, ExpectedStart]] = {}
        """First forecast of each waiting job with its time, by uid."""

    def of(self, uid: str) -> ExpectedStart | None:
        """Return the expected start of this job, or None if it is not known."""
        return self._starts.get(uid)

    async def run(self) -> None:
        """Forecast every minute, or as often as the pause allows. Never returns."""
        with suppress(TimeoutError):  # a busy cluster may never be done
            async with asyncio.timeout(INTERVAL_SECONDS):
                await self._caught_up()
        while True:
            began = time.perf_counter()
            try:
                await self.forecast()
            except Exception:  # information only: the next round tries again
                log.exception("forecast_failed")
            took = time.perf_counter() - began
            await asyncio.sleep(max(INTERVAL_SECONDS, PAUSE_FACTOR * took))

    async def forecast(self) -> None:
        """Forecast the starts of the gangs that wait now, unless the last forecast is current."""
        # Phase 1: learn from the jobs that started since.
        now = self._clock()
        pending = tuple(self._state.scheduling.pending())
        snapshot = self._state.scheduling.snapshot(now=now)
        self._compare(pending)
        self._correction = self._learner.correction(now)
        if not pending:
            self._newest, self._simulated, self._starts = None, {}, {}
            self._looked_at.clear()
            return
        # Phase 2: skip the simulation if only the time has changed.
        snapshot = replace(snapshot, history=self._usage.at(now))
        cycle = CycleInput(
            snapshot=snapshot,
            pending=pending,
            policy=self._policy,
            now=now,
            set_aside=self.set_aside,
        )
        if self._newest is not None and self._newest.is_current(cycle):
            return
        # Phase 3: simulate in a thread.
        repeats = self._newest.repeats_for(cycle) if self._newest is not None else 0
        stopped = threading.Event()
        try:
            starts = await CycleThread(
                lambda work: self._forecast(cycle, work=work, stopped=stopped)
            ).result()
        finally:
            stopped.set()  # cancelled, we are gone at once, but not the thread
        # Phase 4: publish. The scheduler writes the new forecasts with its messages.
        self._newest = Forecast(cycle=cycle, starts=tuple(starts), repeats=repeats)
        self._simulated = {start.uid: start for start in starts}
        self._starts = {}
        self._looked_at.clear()
        waiting = {gang.uid: gang for gang in pending}
        self._take(grouped(simulated=starts, rough=(), waiting=waiting), now=now)
        self._wake()

    def _forecast(
        self, cycle: CycleInput, *, work: Work, stopped: threading.Event
    ) -> Sequence[ExpectedStart]:
        """Forecast in this thread, until it is stopped or has used its processor time."""
        began = time.thread_time()
        with counted(work):
            return self._forecaster(
                cycle,
                go_on=lambda: not stopped.is_set() and time.thread_time() - began < MOST_SECONDS,
                on_fault=self._on_fault,
            )

    def _on_fault(self, fault: GangFault) -> None:
        """Report a job that a forecast leaves out or, if it runs, counts as staying for ever."""
        if self._faults is not None:
            self._faults.raised.labels(stage=fault.stage).inc()
        log.error("forecast_fault", job=fault.key, error=fault.error, trace=fault.trace)

    def add_rough_forecasts(
        self,
        line: Sequence[Blocked],
        *,
        snapshot: Snapshot,
        pending: Sequence[Gang],
        now: float,
    ) -> None:
        """Give each blocked job without a forecast a rough one. O(line) if a job is new.

        Jobs that were deleted are forgotten here too, because many may come and go until the next
        simulated forecast.

        Args:
            line: the jobs that do not start in this cycle, in order.
            snapshot: the cluster of this cycle.
            pending: the waiting gangs.
            now: seconds since the epoch.
        """
        # Phase 1: most cycles have no new job, and end here.
        new = {blocked.uid: blocked for blocked in line if blocked.uid not in self._looked_at}
        if not new:
            return
        # Phase 2: forget the deleted jobs.
        waiting = {gang.uid: gang for gang in pending}
        for uid, (_, start) in list(self._first.items()):
            job = self._state.jobs.get(start.key)
            if uid not in waiting and (job is None or job.uid != uid):
                self._learner.left(uid)
                self._forget(uid)
        # Phase 3: rough forecasts, for the new jobs only.
        self._looked_at |= new.keys()
        rough = rough_starts(
            snapshot=snapshot,
            waiting=waiting,
            line=line,
            known=self._simulated,
            now=now,
            asked=new.keys(),
            on_fault=self._on_fault,
        )
        self._take(grouped(simulated=(), rough=rough, waiting=waiting), now=now)
        # A job that cannot have a forecast is remembered as well, for the comparison with its
        # start.
        for uid, blocked in new.items():
            if uid not in self._starts:
                none = ExpectedStart(key=blocked.key, uid=uid, p50_at=None, p90_at=None)
                self._first.setdefault(uid, (now, none))

    def _take(self, forecasts: Sequence[GroupedStart], *, now: float) -> None:
        """Correct these forecasts, and remember them before the correction."""
        self._learner.note(forecasts, now=now)
        for each in forecasts:
            start = self._correction.of(each, now=now)
            self._starts[start.uid] = start
            self._first.setdefault(start.uid, (now, start))

    def _compare(self, pending: Sequence[Gang]) -> None:
        """Count the first forecasts of jobs that started. Forget these jobs and deleted ones.

        A job that has ended since, or waits again, still has the time of its last admission. If it
        waits again it is new in line, and the forecast of its earlier start is over.
        """
        waiting = {gang.uid for gang in pending}
        for uid, (made_at, start) in list(self._first.items()):
            job = self._state.jobs.get(start.key)
            same = job is not None and job.uid == uid
            admitted_at = job.status.admitted_at if job is not None and same else None
            started_at = None if admitted_at is None else parse_timestamp(admitted_at)
            if started_at is not None and started_at > made_at:
                self._count(StartForecast.of(start, made_at=made_at, started_at=started_at))
                self._learner.started(uid, at=started_at)
            elif uid in waiting:
                continue
            else:
                self._learner.left(uid)
            self._forget(uid)

    def _forget(self, uid: str) -> None:
        del self._first[uid]
        self._looked_at.discard(uid)
        self._starts.pop(uid, None)
        self._simulated.pop(uid, None)

    def _count(self, forecast: StartForecast | None) -> None:
        if forecast is None:
            return
        if forecast.error_ratio is not None:
            self._metrics.error.observe(forecast.error_ratio)
        self._metrics.starts.labels(start=forecast.side).inc()
