"""Verdicts as columns for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from drumline.cli.decide.job_decisions import Line, Verdict
from drumline.cli.formatting import duration, plain

_NODES_SHOWN: Final = 4
_HEADINGS: Final = ("JOB", "QUEUE", "PODS", "GPUS", "VERDICT", "REASON", "EXPECTED", "DETAIL")
_WIDE: Final = ("BY", "RESERVED", "REMEDY")


def table(lines: Sequence[Line], *, now: float, wide: bool) -> str:
    """One line a job; `wide` names every node and says what would help.

    EXPECTED is the moment before which a job starts as likely as not, BY the one before which nine
    in ten forecasts are.
    """
    if not lines:
        return "nothing to decide: no job waits or is broken\n"
    headings = (*_HEADINGS[:-1], *(_WIDE if wide else ()), _HEADINGS[-1])
    rows = [headings, *(_cells(line, now=now, wide=wide) for line in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(headings) - 1)]
    return "".join(f"{_joined(row, widths)}\n" for row in rows)


def _joined(row: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
    return "   ".join((*padded, row[-1])).rstrip()


def _cells(line: Line, *, now: float, wide: bool) -> tuple[str, ...]:
    by, reserved = (_in(at, now=now) for at in (line.expected_start_by, line.reserved_at))
    more = (by, reserved, line.remedy) if wide else ()
    cells = (
        line.job,
        line.queue,
        str(line.pods),
        str(line.gpus),
        str(line.verdict),
        line.reason,
        _in(line.expected_start, now=now),
        *more,
        _detail(line, wide=wide),
    )
    return tuple(plain(cell) for cell in cells)


def _in(moment: float | None, *, now: float) -> str:
    return "" if moment is None else f"in {duration(moment - now)}"


def _detail(line: Line, *, wide: bool) -> str:
    if line.verdict is Verdict.WAITS:
        places = f"; then {_where(line, wide=wide)}" if line.nodes else ""
        return line.message + places
    told = [f"for {line.by}" if line.by else "", _where(line, wide=wide) if line.nodes else ""]
    told.append(f"{line.gpu_seconds_lost:.0f} GPU-seconds lost" if line.gpu_seconds_lost else "")
    told.append(line.message)
    return "; ".join(filter(None, told))


def _where(line: Line, *, wide: bool) -> str:
    domain = f" {line.level} {'/'.join(line.domain)}" if line.domain else ""
    return f"{line.pool}{domain}: {_nodes(line.nodes, wide=wide)}"


def _nodes(nodes: Sequence[str], *, wide: bool) -> str:
    """In the order of their first pods; `n1 x2` has two."""
    counted = list(Counter(nodes).items())
    shown = counted if wide else counted[:_NODES_SHOWN]
    names = ", ".join(name if pods == 1 else f"{name} x{pods}" for name, pods in shown)
    left = len(counted) - len(shown)
    return f"{names} and {left} more" if left else names
