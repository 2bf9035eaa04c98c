"""A comparison of policies as columns for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drumline.cli.formatting import count, duration, percent, plain
from drumline.simulator.results.statistics import Summary

_HEADINGS: Final = (
    "POLICY",
    "UTILISATION",
    "MEAN WAIT",
    "MEDIAN",
    "P95",
    "P95 OF LARGEST 10 %",
    "MAKESPAN",
    "PREEMPTED",
    "REDONE",
    "NEVER STARTED",
)


def table(title: str, summaries: Sequence[tuple[str, Summary]]) -> str:
    """One line a policy, and what the first one is beside the others."""
    rows = [_HEADINGS, *(_cells(name, one) for name, one in summaries)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = [plain(title), ""]
    lines += [_aligned(row, widths) for row in rows]
    first, *others = summaries
    lines += ["", *(beside(first, other) for other in others)] if others else []
    if first[1].start_error is not None:
        lines += ["", f"expected starts were off by {percent(first[1].start_error)} (median)"]
    return "\n".join(lines) + "\n"


def beside(first: tuple[str, Summary], other: tuple[str, Summary]) -> str:
    """The first policy's figures as parts of another one's."""
    (name, ours), (their_name, theirs) = first, other
    points = 100 * (ours.utilisation - theirs.utilisation)
    waits = _part(ours.mean_wait_seconds, theirs.mean_wait_seconds)
    largest = _part(ours.largest_p95_wait_seconds, theirs.largest_p95_wait_seconds)
    return (
        f"{name} beside {their_name}: {points:+.1f} points of utilisation, {waits} of its mean"
        f" wait, {largest} of the largest jobs' p95 wait"
    )


def _cells(name: str, one: Summary) -> tuple[str, ...]:
    return (
        name,
        percent(one.utilisation),
        duration(one.mean_wait_seconds),
        duration(one.median_wait_seconds),
        duration(one.p95_wait_seconds),
        duration(one.largest_p95_wait_seconds),
        duration(one.makespan_seconds),
        count(one.preempted),
        percent(one.lost_share),
        count(one.never_started),
    )


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        cell.ljust(width) if column == 0 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "   ".join((first, *others)).rstrip()


def _part(ours: float, theirs: float) -> str:
    return percent(ours / theirs) if theirs else "(nothing)"
