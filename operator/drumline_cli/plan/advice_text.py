"""Format the planner's advice as columns: model too large, batch too small, run too long."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from drumline_cli.columns import columns, gib
from drumline_cli.formatting import count, duration
from drumline_contract.plain_text import plain
from drumline_planner.decision_sequences import DecisionSequence, days
from drumline_planner.ladder import Advice, Rung


def advice_text(advice: Advice, *, total_tokens: float | None) -> list[str]:
    """Return the lines of the advice: tables, then sentences."""
    lines = ["MEASURES, cheapest first", f"  {advice.rule}", *_ladder(advice.rungs), ""]
    for sequence in advice.sequences:
        lines += [*_sequence(sequence, total_tokens=total_tokens), ""]
    return [*lines, *advice.sentences, ""]


def _ladder(rungs: Sequence[Rung]) -> list[str]:
    """Return the memory of each step, and its savings over the step above."""
    rows: list[tuple[str, ...]] = [("", "NEEDS", "SAVES", "STEP", "")]
    for reason, together in groupby(rungs, key=lambda rung: rung.why_not):
        same = list(together)
        if reason:  # of many rungs at once where the batch is too small
            name = same[0].name if len(same) == 1 else f"{same[0].name} ... {same[-1].name}"
            rows.append((f"  {name}", "-", "-", "-", plain(reason)))
            continue
        rows += [_possible(rung) for rung in same]
    return columns(rows, left=(0, 4))


def _possible(rung: Rung) -> tuple[str, ...]:
    step = "-" if rung.seconds is None else duration(rung.seconds)
    size = 0.0 if rung.size is None else rung.size
    return (
        f"  {rung.name}",
        gib(size),
        _saved(rung.saves),
        step,
        "fits" if rung.fits else "too much",
    )


def _saved(size: float | None) -> str:
    if size is None or abs(size) < 1 << 20:
        return "-"
    return gib(size) if size > 0 else f"-{gib(-size)}"


def _sequence(sequence: DecisionSequence, *, total_tokens: float | None) -> list[str]:
    long = total_tokens is not None
    heading = ["", "GPUS", "BATCH", "STEP", "TOKENS/S", "TOKENS/S/GPU"]
    rows = [(*heading, *(["DAYS", "GPU HOURS"] if long else []), "LAYOUT")]
    for measure in sequence.measures:
        cells = [f"  {measure.name}", count(measure.gpus), count(measure.batch)]
        if measure.seconds is None or measure.tokens_per_second is None:
            cells += ["-"] * (5 if long else 3)
        else:
            cells += [
                duration(measure.seconds),
                count(measure.tokens_per_second),
                count(measure.tokens_per_gpu_second),
            ]
            if total_tokens is not None:
                length = days(measure, total_tokens) or 0.0
                cells += [f"{length:.1f}", count(24 * length * measure.gpus)]
        rows.append((*cells, measure.layout or "no layout"))
    last = len(rows[0]) - 1
    return [f"WHERE THE {sequence.failure.upper()}", *columns(rows, left=(0, last))]
