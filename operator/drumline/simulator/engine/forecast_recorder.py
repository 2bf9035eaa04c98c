"""Records the expected starts of waiting jobs during a simulation, to compare them with reality."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from drumline.scheduling import Gang, Policy, Snapshot
from drumline.scheduling.forecast import ExpectedStart, expected_starts
from drumline.scheduling.forecast_accuracy import StartForecast

Forecaster = Callable[..., Sequence[ExpectedStart]]
"""`expected_starts`, or a function with its signature."""


@dataclass(slots=True, kw_only=True)
class ForecastRecorder:
    """Computes expected starts every `every_seconds` and keeps the answers."""

    every_seconds: float
    forecaster: Forecaster = expected_starts
    _next_at: float = field(default=float("-inf"), init=False)
    _answers: list[tuple[float, ExpectedStart]] = field(
        default_factory=list[tuple[float, ExpectedStart]], init=False
    )

    def record(
        self, *, snapshot: Snapshot, pending: Iterable[Gang], policy: Policy, now: float
    ) -> None:
        """Compute expected starts, unless they are recent or no gang is pending."""
        waiting = list(pending)
        if now < self._next_at or not waiting:
            return
        self._next_at = now + self.every_seconds
        answers = self.forecaster(snapshot=snapshot, pending=waiting, policy=policy, now=now)
        self._answers += [(now, answer) for answer in answers]

    def forecasts(self, starts: Mapping[str, float | None]) -> tuple[StartForecast, ...]:
        """All forecasts that were made before the first start of their job.

        Args:
            starts: the first start of each job by uid.
        """
        forecasts = (
            StartForecast.of(answer, made_at=made_at, started_at=started_at)
            for made_at, answer in self._answers
            if (started_at := starts[answer.uid]) is not None
        )
        return tuple(forecast for forecast in forecasts if forecast is not None)
