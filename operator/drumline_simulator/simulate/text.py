"""Format a comparison of policies as columns for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drumline_cli.columns import columns
from drumline_cli.formatting import count, duration, percent
from drumline_contract import plain
from drumline_scheduler.forecast.accuracy import Calibration
from drumline_simulator.results.statistics import Summary

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
    """Return one row per policy, and the first policy compared with each other policy."""
    rows = [_HEADINGS, *(_cells(name, summary) for name, summary in summaries)]
    lines = [plain(title), "", *columns(rows, left=(0,))]
    first, *rest = summaries
    lines += ["", *(compared(first, other) for other in rest)] if rest else []
    if first[1].starts is not None:
        lines += ["", calibrated(first[1].starts)]
    return "\n".join(lines) + "\n"


def compared(first: tuple[str, Summary], other: tuple[str, Summary]) -> str:
    """Compare the first policy with another policy in one sentence."""
    (name, ours), (their_name, theirs) = first, other
    points = 100 * (ours.utilisation - theirs.utilisation)
    waits = _part(ours.mean_wait_seconds, theirs.mean_wait_seconds)
    largest = _part(ours.largest_p95_wait_seconds, theirs.largest_p95_wait_seconds)
    return (
        f"{name} compared with {their_name}: {points:+.1f} points of utilisation, {waits} of its"
        f" mean wait, {largest} of the largest jobs' p95 wait"
    )


def calibrated(starts: Calibration) -> str:
    """Describe the accuracy of expected starts in one sentence."""
    shares = ((starts.by_p50, "before the p50 (ideal: half)"), (starts.by_p90, "by the p90"))
    said = [f"{percent(share)} of the starts were {when}" for share, when in shares if share]
    if starts.median_error is not None:
        said.insert(0, f"off by {percent(starts.median_error)} of the wait (median)")
    if starts.without_p90:
        said.append(f"{starts.without_p90} had no range")
    return f"{starts.forecasts} expected starts: {', '.join(said)}"


def _cells(name: str, summary: Summary) -> tuple[str, ...]:
    return (
        name,
        percent(summary.utilisation),
        duration(summary.mean_wait_seconds),
        duration(summary.median_wait_seconds),
        duration(summary.p95_wait_seconds),
        duration(summary.largest_p95_wait_seconds),
        duration(summary.makespan_seconds),
        count(summary.preempted),
        percent(summary.lost_share),
        count(summary.never_started),
    )


def _part(ours: float, theirs: float) -> str:
    return percent(ours / theirs) if theirs else "(nothing)"
