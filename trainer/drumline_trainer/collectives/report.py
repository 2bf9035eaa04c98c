"""The benchmark's figures as a table and as JSON. No torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TypeVar

from drumline_trainer.collectives.measurements import Collective, Measurement, fit

Key = TypeVar("Key")
Value = TypeVar("Value")

_HEAD = f"{'collective':<16}{'by':<11}{'size':>10}{'time':>11}{'algorithm':>13}{'bus':>13}"
_FORMULAS = """\
time is the median of the slowest rank's; algorithm bandwidth = size / time;
bus bandwidth = algorithm bandwidth x, for n ranks"""


def table(rows: Sequence[Measurement], *, title: str) -> str:
    """Axis by axis; each collective's sizes, then the line through its times."""
    lines = [title]
    for axis, of_axis in _grouped(rows, lambda row: row.axis):
        lines += ["", f"{axis}: {of_axis[0].ranks} ranks", _HEAD]
        for _, series in _grouped(of_axis, lambda row: (row.collective, row.by)):
            lines += map(_line, series)
            lines += _line_through(series)
    if not rows:
        lines += ["one rank on every axis: there is nothing to measure"]
    formulas = [
        f"  {formula} for {', '.join(collectives)}"
        for formula, collectives in _grouped(tuple(Collective), lambda each: each.formula)
    ]
    return "\n".join([*lines, "", _FORMULAS, *formulas, ""])


def as_json(rows: Sequence[Measurement], **about: object) -> str:
    """One object: what was measured, every figure, and the line through each series."""
    figures = [
        {
            **asdict(row),
            "algorithm_bytes_per_second": row.algorithm_bandwidth,
            "bus_bytes_per_second": row.bus_bandwidth,
        }
        for row in rows
    ]
    fits = [
        {
            "axis": axis,
            "collective": collective,
            "by": by,
            "alpha_seconds": line.alpha,
            "beta_bytes_per_second": line.beta,
        }
        for (axis, collective, by), series in _grouped(
            rows, lambda row: (row.axis, row.collective, row.by)
        )
        if (line := fit(series)) is not None
    ]
    return json.dumps({**about, "rows": figures, "fits": fits}, indent=1) + "\n"


def _grouped(
    values: Sequence[Value], key: Callable[[Value], Key]
) -> Iterator[tuple[Key, list[Value]]]:
    """Groups in the order of first appearance; equal keys need not be adjacent."""
    groups: dict[Key, list[Value]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    yield from groups.items()


def _line(row: Measurement) -> str:
    return (
        f"{row.collective:<16}{row.by:<11}{_bytes(row.bytes):>10}{_time(row.seconds):>11}"
        f"{_bandwidth(row.algorithm_bandwidth):>13}{_bandwidth(row.bus_bandwidth):>13}"
    )


def _line_through(series: Sequence[Measurement]) -> Iterator[str]:
    line = fit(series)
    if line is not None:
        yield f"{'':<16}time = {_time(line.alpha)} + size / {_bandwidth(line.beta)}"


def _bytes(size: int) -> str:
    for unit, of in (("MiB", 1024**2), ("KiB", 1024)):
        if size >= of:
            return f"{size / of:.4g} {unit}"
    return f"{size} B"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def _bandwidth(bytes_per_second: float) -> str:
    if bytes_per_second >= 1e9:
        return f"{bytes_per_second / 1e9:.2f} GB/s"
    return f"{bytes_per_second / 1e6:.2f} MB/s"
