"""Job decisions as columns for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from drumline.overview.advice import page_of
from drumline_cli.columns import columns
from drumline_cli.decide.alternatives_text import money
from drumline_cli.decide.job_decisions import JobDecision, JobVerdict
from drumline_cli.formatting import duration
from drumline_cli.start_text import start_text
from drumline_contract import plain
from drumline_scheduler.decisions import RemedyKind

_NODES_SHOWN: Final = 4
_HEADINGS: Final = ("JOB", "QUEUE", "PODS", "GPUS", "VERDICT", "REASON", "EXPECTED", "DETAIL")
_WIDE: Final = ("RESERVED", "REMEDY", "ASKS")


def table(
    decisions: Sequence[JobDecision], *, now: float, wide: bool, forecast: bool = True
) -> str:
    """Return one line per job. `wide` adds every node, the remedy and the requested topology.

    EXPECTED is the band of the forecasts of its start, as `drumline queue` shows it.

    Args:
        decisions: one decision per job.
        now: Unix time in seconds.
        wide: whether to add columns.
        forecast: whether to show expected starts.
    """
    if not decisions:
        return "nothing to decide: no job is pending\n"
    headings = (*_HEADINGS[:-1], *(_WIDE if wide else ()), _HEADINGS[-1])
    rows = [
        headings,
        *(_cells(decision, now=now, wide=wide, forecast=forecast) for decision in decisions),
    ]
    return "".join(f"{line}\n" for line in columns(rows, left=range(len(headings))))


def _cells(decision: JobDecision, *, now: float, wide: bool, forecast: bool) -> tuple[str, ...]:
    reserved = _in(decision.reserved_at, now=now)
    more = (reserved, decision.remedy, ", ".join(decision.asks)) if wide else ()
    cells = (
        decision.job + (" (surplus)" if decision.surplus else ""),
        decision.queue,
        str(decision.pods),
        f"{decision.gpus}{' parts' if decision.parts_per_gpu > 1 else ''}",
        str(decision.verdict),
        decision.reason,
        _expected(decision, now=now) if forecast else "",
        *more,
        detail(decision, wide=wide),
    )
    return tuple(plain(cell) for cell in cells)


def _expected(decision: JobDecision, *, now: float) -> str:
    if decision.verdict is not JobVerdict.WAITS:
        return ""
    return start_text(
        decision.expected_start, decision.expected_start_by, now=now, reason=decision.reason
    )


def _in(moment: float | None, *, now: float) -> str:
    return "" if moment is None else f"in {duration(moment - now)}"


def detail(decision: JobDecision, *, wide: bool) -> str:
    """Return the destination of the job or the job it leaves for, and further details."""
    if decision.verdict is JobVerdict.WAITS:
        places = f"; then {_where(decision, wide=wide)}" if decision.nodes else ""
        cost = _cost(decision)
        name = decision.remedy_kind == RemedyKind.CORRECT_NAME
        remedy = f"; {decision.remedy}" if name and decision.remedy else ""
        page = f" ({page_of(decision.reason)})" if decision.reason else ""
        return decision.message + remedy + places + (cost and f"; {cost}") + page
    parts = [
        f"for {decision.by}" if decision.by else "",
        _where(decision, wide=wide) if decision.nodes else "",
    ]
    parts.append(
        f"{decision.gpu_seconds_lost:.0f} GPU-seconds lost" if decision.gpu_seconds_lost else ""
    )
    parts += [_cost(decision), decision.message]
    return "; ".join(filter(None, parts))


def _cost(decision: JobDecision) -> str:
    """`Spot, 7.20 an hour, 172.80 at most`; empty where no price is known."""
    if not decision.cost_per_hour:
        return ""
    most = f", {money(decision.cost_at_most)} at most" if decision.cost_at_most else ""
    return f"{decision.capacity}, {money(decision.cost_per_hour)} an hour{most}"


def _where(decision: JobDecision, *, wide: bool) -> str:
    domain = f" {decision.level} {'/'.join(decision.domain)}" if decision.domain else ""
    return f"{decision.pool}{domain}: {_nodes(decision.nodes, wide=wide)}"


def _nodes(nodes: Sequence[str], *, wide: bool) -> str:
    """Return node names in the order of their first pods. `n1 x2` has two pods."""
    counted = list(Counter(nodes).items())
    shown = counted if wide else counted[:_NODES_SHOWN]
    names = ", ".join(name if pods == 1 else f"{name} x{pods}" for name, pods in shown)
    left = len(counted) - len(shown)
    return f"{names} and {left} more" if left else names
