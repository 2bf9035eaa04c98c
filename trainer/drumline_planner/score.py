"""Compare predictions with measured iterations, row by row and in summary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from drumline_planner.constants import CALIBRATED, Constants
from drumline_planner.measured_rows import Measured
from drumline_planner.memory import Bill, memory_bill
from drumline_planner.step_time import StepTime, step_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A row with its prediction."""

    measured: Measured
    predicted: StepTime
    bill: Bill

    @property
    def error(self) -> float | None:
        """Return the error of the time, relative to the measured time."""
        seconds = self.measured.seconds
        return None if seconds is None else self.predicted.seconds / seconds - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """Errors of the predictions."""

    rows: int
    mean_absolute: float
    """Mean absolute relative error."""
    ninetieth: float
    """Nine of ten rows are off by at most this."""
    spearman: float
    """Rank correlation: 1 is the right order, 0 is chance."""
    regret: float
    """Slowdown of the predicted layout relative to the fastest layout, mean over the models."""
    anchored: float | None
    """Mean absolute error of the other rows once each code base's first row is right."""
    fits: float | None
    """Share of rows for which the prediction of fitting is right. None: no row states it."""
    memory: float | None
    """Mean absolute error of the memory; None: no row has it."""


def score(
    rows: Sequence[Measured], *, constants: Constants = CALIBRATED
) -> tuple[list[Scored], ErrorSummary]:
    """Return every row's prediction and measurement, and a summary of the errors."""
    scored = [
        Scored(
            measured=row,
            predicted=step_time(row.setup, row.cluster, constants=constants),
            bill=memory_bill(row.setup, capacity=row.cluster.gpu.memory_bytes),
        )
        for row in rows
    ]
    return scored, summary(scored)


def summary(scored: Sequence[Scored]) -> ErrorSummary:
    """Return the summary of the errors."""
    timed = [each for each in scored if each.error is not None]
    errors = sorted(abs(each.error or 0.0) for each in timed)
    # Rows count if they state a time or that the layout did not fit.
    said = [each for each in scored if each.measured.seconds is not None or not each.measured.ran]
    right = sum(each.bill.fits == each.measured.ran for each in said)
    memory = [
        abs(each.bill.total / each.measured.memory_bytes - 1)
        for each in scored
        if each.measured.memory_bytes
    ]
    return ErrorSummary(
        rows=len(timed),
        mean_absolute=_mean(errors),
        # The 90th percentile without interpolation.
        ninetieth=errors[min(len(errors) - 1, math.ceil(0.9 * len(errors)) - 1)] if errors else 0.0,
        spearman=_spearman(timed),
        regret=_regret(timed),
        anchored=_anchored(timed),
        fits=right / len(said) if said else None,
        memory=_mean(memory) if memory else None,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda index: values[index])
    ranks = [0.0] * len(values)
    for place, index in enumerate(order):
        ranks[index] = float(place)
    return ranks


def _spearman(timed: Sequence[Scored]) -> float:
    """Return the rank correlation of the time per sample, over layouts and models."""
    if len(timed) < 3:
        return 1.0
    theirs = _ranks([each.measured.seconds or 0.0 for each in timed])
    ours = _ranks([each.predicted.seconds for each in timed])
    middle = (len(timed) - 1) / 2
    covariance = sum((a - middle) * (b - middle) for a, b in zip(theirs, ours, strict=True))
    # Spearman's coefficient without ties: both rankings have the same variance.
    return covariance / sum((a - middle) ** 2 for a in theirs)


def _regret(timed: Sequence[Scored]) -> float:
    """Return the mean regret over groups of alternatives.

    Rows of one model, batch, number of GPUs and code base are alternatives.
    """
    groups: dict[tuple[object, ...], list[Scored]] = {}
    for each in timed:
        setup = each.measured.setup
        key = (setup.model, setup.global_tokens, setup.layout.world_size, each.measured.code_base)
        groups.setdefault(key, []).append(each)
    lost: list[float] = []
    for group in groups.values():
        if len(group) > 1:
            # Choose by the prediction and pay the measured time.
            chosen = min(group, key=lambda each: each.predicted.seconds)
            best = min(each.measured.seconds or 0.0 for each in group)
            lost.append((chosen.measured.seconds or 0.0) / best - 1)
    return _mean(lost)


def _anchored(timed: Sequence[Scored]) -> float | None:
    groups: dict[str, list[Scored]] = {}
    for each in timed:
        groups.setdefault(each.measured.code_base, []).append(each)
    errors: list[float] = []
    for first, *following in groups.values():
        # The first row calibrates the code base, so the others test the relations.
        scale = (first.measured.seconds or 0.0) / first.predicted.seconds
        errors += [
            abs(each.predicted.seconds * scale / (each.measured.seconds or 1.0) - 1)
            for each in following
        ]
    return _mean(errors) if errors else None
