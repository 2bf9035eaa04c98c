"""Draw jobs over time as a PNG with matplotlib (extra `simulator`). Only this module needs it."""

# matplotlib's own types leave every **kwargs open
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import Final

from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from drumline.overview.gantt import HELD, PLANNED, STARTS_WITHIN, WAITED
from drumline.overview.rows import GanttRow
from drumline_cli.errors import BadInput
from drumline_console.gantt.chart import WORDS

_COLOURS: Final = {WAITED: "#8c959f", HELD: "#2da44e", PLANNED: "#a6dbb4", STARTS_WITHIN: "#bf8700"}
MOST_ROWS: Final = 200
_DAY: Final = 86_400


def save(rows: Sequence[GanttRow], file: Path, *, now: float, since: float, until: float) -> None:
    """Write the picture, with at most `MOST_ROWS` jobs.

    Args:
        rows: rows to show.
        file: path of the picture. Its ending selects the format.
        now: Unix time in seconds.
        since: Unix time of the left edge.
        until: Unix time of the right edge.

    Raises:
        BadInput: the file cannot be written.
    """
    shown = rows[:MOST_ROWS]
    figure = Figure(figsize=(12, 1.4 + 0.26 * max(len(shown), 1)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(shown):
        for bar in row.bars:
            begins = max(bar.begins_at, since)
            ends = until if bar.ends_at is None else min(bar.ends_at, until)
            axes.barh(
                place,
                _day(ends) - _day(begins),
                left=_day(begins),
                height=0.7,
                color=_COLOURS[bar.state],
                label=WORDS[bar.state],
            )
    axes.axvline(_day(now), color="#cf222e", linewidth=1)
    axes.set_xlim(_day(since), _day(until))
    axes.set_yticks(range(len(shown)), [f"{row.job}, {row.gpus}" for row in shown], fontsize=8)
    axes.invert_yaxis()
    locator = AutoDateLocator(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))
    known = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(known.values(), known.keys(), loc="lower right", fontsize=8)
    try:
        figure.savefig(file, dpi=120)
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}") from None


def _day(moment: float) -> float:
    """Return days since the epoch, matplotlib's unit of dates."""
    return moment / _DAY
