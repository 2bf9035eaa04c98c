"""Record the expected starts of pending jobs during a simulation, to compare them with reality.

They are the operator's forecasts. The starts of the first pending jobs come from simulated futures,
the others are estimates. All are corrected by the errors of earlier forecasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from drumline_scheduler import CycleInput, Gang, Policy, Snapshot, decide
from drumline_scheduler.forecast.accuracy import StartForecast
from drumline_scheduler.forecast.correction import ForecastLearner
from drumline_scheduler.forecast.expected_starts import ExpectedStart, expected_starts
from drumline_scheduler.forecast.line_forecast import line_forecast

Forecaster = Callable[..., Sequence[ExpectedStart]]
"""`expected_starts`, or a function with its signature."""


@dataclass(slots=True, kw_only=True)
class ForecastRecorder:
    """Computes expected starts every `every_seconds` and keeps the answers."""

    every_seconds: float
    forecaster: Forecaster = expected_starts
    corrects: bool = True
    """True: forecasts are corrected by earlier errors. False: they are the forecaster's results."""
    _next_at: float = field(default=float("-inf"), init=False)
    _learner: ForecastLearner = field(default_factory=ForecastLearner, init=False)
    _answers: list[tuple[float, ExpectedStart]] = field(
        default_factory=list[tuple[float, ExpectedStart]], init=False
    )

    def record(
        self, *, snapshot: Snapshot, pending: Iterable[Gang], policy: Policy, now: float
    ) -> None:
        """Compute expected starts, unless they are recent or no gang is pending.

        Args:
            snapshot: state of the cluster.
            pending: waiting gangs.
            policy: policy of the scheduler.
            now: seconds of the virtual clock.
        """
        waiting = {gang.uid: gang for gang in pending}
        self._learn(snapshot)
        if now < self._next_at or not waiting:
            return
        self._next_at = now + self.every_seconds
        cycle = CycleInput(
            snapshot=snapshot, pending=tuple(waiting.values()), policy=policy, now=now
        )
        forecast = line_forecast(
            cycle,
            blocked=decide(cycle).blocked,
            simulated=self.forecaster(cycle),
            correction=self._learner.correction(now),
        )
        self._learner.note(forecast.made, now=now)
        answers = {
            gang.uid: ExpectedStart(key=gang.key, uid=gang.uid, p50_at=None, p90_at=None)
            for gang in waiting.values()
        }
        shown = forecast.starts if self.corrects else [each.start for each in forecast.made]
        answers |= {start.uid: start for start in shown}
        self._answers += [(now, answer) for answer in answers.values()]

    def forecasts(self, starts: Mapping[str, float | None]) -> tuple[StartForecast, ...]:
        """Return all forecasts made before the first start of their job.

        Args:
            starts: first start of each job by uid.
        """
        forecasts = (
            StartForecast.of(answer, made_at=made_at, started_at=started_at)
            for made_at, answer in self._answers
            if (started_at := starts[answer.uid]) is not None
        )
        return tuple(forecast for forecast in forecasts if forecast is not None)

    def _learn(self, snapshot: Snapshot) -> None:
        """Pass the starts at this time to the learner."""
        awaited = self._learner.waiting
        if not awaited:
            return
        for held in snapshot.admitted:
            if held.gang.uid in awaited:
                self._learner.started(held.gang.uid, at=held.admitted_at)
