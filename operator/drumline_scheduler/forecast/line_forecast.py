"""Expected starts of all waiting gangs, for the operator, `drumline decide` and the simulator.

The first gangs of each line are simulated (`expected_starts`), and the others are estimated
(`rough_starts`). Both are corrected by the errors of earlier forecasts (`correction`). Gangs that
cannot start have no expected start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.decisions import Blocked
from drumline_scheduler.forecast.correction import (
    Correction,
    ForecastLearner,
    GroupedStart,
    grouped,
)
from drumline_scheduler.forecast.expected_starts import ExpectedStart, expected_starts
from drumline_scheduler.forecast.isolation import OnFault, ignored
from drumline_scheduler.forecast.lines import CANNOT_START
from drumline_scheduler.forecast.rough_starts import rough_starts


@dataclass(frozen=True, slots=True, kw_only=True)
class LineForecast:
    """Forecasts of the starts of waiting gangs."""

    made: Sequence[GroupedStart]
    """The forecasts before their correction, for `ForecastLearner.note`."""
    starts: Sequence[ExpectedStart]
    """The corrected forecasts."""


def line_forecast(
    cycle: CycleInput,
    *,
    blocked: Sequence[Blocked],
    simulated: Iterable[ExpectedStart] | None = None,
    correction: Correction | None = None,
    on_fault: OnFault = ignored,
) -> LineForecast:
    """Return the expected starts of the gangs that a cycle leaves waiting.

    Args:
        cycle: the arguments of the cycle.
        blocked: its rejections, in scheduling order.
        simulated: `expected_starts` of the same cycle; None: they are computed here.
        correction: of earlier forecasts; None: that of an operator that has just started.
        on_fault: takes each exception on one gang.
    """
    if simulated is None:
        simulated = expected_starts(cycle, on_fault=on_fault) if blocked else ()
    now = cycle.now
    # Gangs that need a change of the job or the cluster have no expected start.
    dated = [each for each in blocked if each.reason not in CANNOT_START]
    waiting = {gang.uid: gang for gang in cycle.pending}
    uids = {each.uid for each in dated}
    known = {start.uid: start for start in simulated if start.uid in uids}
    rough = rough_starts(
        snapshot=cycle.snapshot,
        waiting=waiting,
        line=dated,
        known=known,
        now=now,
        on_fault=on_fault,
    )
    made = grouped(simulated=known.values(), rough=rough, waiting=waiting)
    # Without observations the prior still widens the band.
    correction = correction or ForecastLearner().correction(now)
    return LineForecast(made=made, starts=[correction.of(each, now=now) for each in made])
