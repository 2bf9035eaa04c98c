"""How the planner's global constants were found: one set for all rows, without randomness.

`python -m tests.unit.trainer.planner.fitting` finds them again, from where they are. A pattern
search: what is minimized is the mean absolute logarithm of predicted over measured time, of each
row at most `_OUTLIER`, as a run that met a fault of its machine says nothing about the model. Every
constant has bounds that physics sets. O(rounds · constants · rows).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import drumline_planner
from drumline_planner.constants import CALIBRATED, Constants
from drumline_planner.measured_rows import Measured, read_rows
from drumline_planner.step_time import step_time

CALIBRATION = Path(drumline_planner.__file__).parent / "data/vtrain_a100.csv"
"""The measured iterations that the constants were found on."""
BOUNDS: dict[str, tuple[float, float]] = {
    "matmul": (0.5, 0.92),
    "half_width": (16.0, 2000.0),
    "passes": (1.0, 6.0),
    "kernel": (1e-6, 20e-6),
    "domain": (0.3, 0.85),
    "network": (0.3, 0.95),
    "latency": (1.0, 8.0),
    "step": (0.002, 0.05),
}
"""Shares of line rates that collectives were never seen above, times no kernel start is below."""
_OUTLIER = 0.35


def loss(rows: Sequence[Measured], constants: Constants) -> float:
    """How far predictions are off; see above."""
    errors = [
        abs(math.log(step_time(row.setup, row.cluster, constants=constants).seconds / row.seconds))
        for row in rows
        if row.seconds is not None
    ]
    return sum(min(error, _OUTLIER) for error in errors) / len(errors)


def fit(
    rows: Sequence[Measured], *, start: Constants, first: float = 0.5, last: float = 0.02
) -> Constants:
    """The constants nearest to `start` that no step of the share `last` on one of them betters.

    Args:
        rows: measured iterations.
        start: where to begin.
        first: share by which constants are changed at first.
        last: the smallest change that is tried.
    """
    constants, best, step = start, loss(rows, start), first
    while step >= last:
        better = False
        for name, (low, high) in BOUNDS.items():
            for factor in (1 + step, 1 / (1 + step)):
                value = min(high, max(low, getattr(constants, name) * factor))
                changed: Constants = replace(constants, **{name: value})
                now = loss(rows, changed)
                if now < best - 1e-7:
                    constants, best, better = changed, now, True
        if not better:
            step /= 2
    return constants


if __name__ == "__main__":
    measured = read_rows(CALIBRATION.read_text())
    print(f"now {loss(measured, CALIBRATED):.4f}: {CALIBRATED}")
    nearest = fit(measured, start=CALIBRATED)
    print(f"fit {loss(measured, nearest):.4f}: {nearest}")
