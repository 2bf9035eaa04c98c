"""Draw compute time by rank and step as inline SVG, and describe the slowest rank.

As the charts of `step_charts`: colours are classes, and the picture says in words what it shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final

from drumline_cli.formatting import count, many
from drumline_cli.markup import Markup, element
from drumline_cli.report.charts import picture
from drumline_cli.report.figure_axis import FigureAxis, spanning
from drumline_cli.report.step_charts import LEFT, RIGHT, step_ticks
from drumline_contract import ComputePoint
from drumline_contract.rank_compute import MAX_ROWS, SLOWER, ranks_of_row

_TOP: Final = 8
_ROW: Final = 18
# Tall enough for the rows of a large job, and short enough for one screen.
MOST_HEIGHT: Final = 390
_MOST_NAMES: Final = 16
"""Maximum number of rank names at the left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Compute times that have the same colour."""

    least: float
    """Times the median, of the group's slowest."""
    slug: str
    """Its class in report.css."""
    meaning: str
    """In the legend."""


BANDS: Final = (
    Band(least=0.0, slug="heat-fast", meaning="less than 0.9 x the median"),
    Band(least=0.9, slug="heat-even", meaning="about the median"),
    Band(least=1.1, slug="heat-1", meaning="from 1.1 x"),
    Band(least=1.2, slug="heat-2", meaning="from 1.2 x"),
    Band(least=1.5, slug="heat-3", meaning="from 1.5 x"),
    Band(least=2.0, slug="heat-4", meaning="2 x and more"),
)


def rank_map(points: Sequence[ComputePoint]) -> Markup:
    """Return a column per point and a row per rank, or empty text with fewer than two points."""
    said = slowest(points)
    # One point makes no picture, and without ratios there is nothing to show.
    if len(points) < 2 or not said:
        return Markup("")
    # The number of ranks can change during the run. The largest one defines the rows.
    ranks = max(point.ranks for point in points)
    bottom = _TOP + min(_ROW * min(ranks, MAX_ROWS), MOST_HEIGHT)
    edges = _edges([point.step for point in points])
    across = spanning(edges, at_low=LEFT, at_high=RIGHT)
    down = FigureAxis(low=0, high=ranks, at_low=_TOP, at_high=bottom)
    cells = (
        cell
        for point, (begins, ends) in zip(points, pairwise(map(across, edges)), strict=True)
        for cell in _column(point, down, left=begins, right=ends)
    )
    return picture(
        "rank-map",
        "Compute time per step by rank",
        f"{count(ranks)} ranks at {len(points)} points, from step {count(points[0].step)} to step"
        f" {count(points[-1].step)}; the slowest: {said}",
        *cells,
        *_names(down, ranks=ranks),
        *step_ticks(across, y=bottom + 18),
        height=bottom + 26,
    )


def slowest(points: Sequence[ComputePoint]) -> str:
    """Return the slowest rank at the last point, and since when it is slow, or empty text.

    Example: rank 5, 1.3 x the median at step 400; slow since step 120 (8 points)
    """
    # Only the last point counts: a rank may have recovered.
    known = [
        (ratio, row)
        for point in points[-1:]
        for row, ratio in enumerate(point.ratios)
        if ratio is not None
    ]
    if not known:
        return ""
    newest = points[-1]
    ratio, row = max(known, key=lambda each: each[0])
    where = f"{ratio:g} x the median at step {count(newest.step)}"
    # All ranks differ slightly. Below the threshold none is worth a warning.
    if ratio < SLOWER:
        return f"no rank stands out; at most {where}"
    first = newest
    points_slow = 0
    # Walk back while the rank is slow, to find the start of the problem.
    for point in reversed(points):
        # Another number of ranks means other rows, so the history ends there.
        level = point.ratios[row] if point.ranks == newest.ranks else None
        if level is None or level < SLOWER:
            break
        first, points_slow = point, points_slow + 1
    name = _name(ranks_of_row(row, ranks=newest.ranks), of_many="one of ranks")
    return f"{name}, {where}; slow since step {count(first.step)} ({many(points_slow, 'point')})"


def bands_in(points: Sequence[ComputePoint]) -> tuple[Band, ...]:
    """Return the bands that any rank is in, from fast to slow."""
    ratios = {ratio for point in points for ratio in point.ratios if ratio is not None}
    seen = set(map(_band, ratios))
    return tuple(band for band in BANDS if band in seen)


def _band(ratio: float) -> Band:
    return next((band for band in reversed(BANDS) if ratio >= band.least), BANDS[0])


def _edges(steps: Sequence[int]) -> list[float]:
    # Each column is centred on its step, so its edges are in the middle.
    """Return the column edges: the middles between these two or more steps."""
    inner = [(before + after) / 2 for before, after in pairwise(steps)]
    return [max(2 * steps[0] - inner[0], 0.0), *inner, 2 * steps[-1] - inner[-1]]


def _column(
    point: ComputePoint, down: FigureAxis, *, left: float, right: float
) -> Iterator[Markup]:
    # Merged cells keep the file small: a large job has thousands of ranks.
    """Return a rectangle for each run of neighbors in the same band, or none."""
    rows = [(row, ratio) for row, ratio in enumerate(point.ratios) if ratio is not None]
    # Neighbours in the same band have the same difference of row and place among the known.
    keyed = ((row - place, _band(ratio), row, ratio) for place, (row, ratio) in enumerate(rows))
    for (_, band), run in groupby(keyed, key=lambda each: each[:2]):
        cells = list(run)
        begins = ranks_of_row(cells[0][2], ranks=point.ranks).start
        ends = ranks_of_row(cells[-1][2], ranks=point.ranks).stop
        low, high = min(cell[3] for cell in cells), max(cell[3] for cell in cells)
        times = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        name = _name(range(begins, ends), of_many="ranks")
        yield element(
            "rect",
            element("title", f"{name}: {times} x the median at step {count(point.step)}"),
            x=left,
            y=down(begins),
            width=right - left,
            height=down(ends) - down(begins),
            class_=f"heat band {band.slug}",
        )


def _name(ranks: range, *, of_many: str) -> str:
    if len(ranks) == 1:
        return f"rank {count(ranks.start)}"
    return f"{of_many} {count(ranks.start)} to {count(ranks.stop - 1)}"


def _names(down: FigureAxis, *, ranks: int) -> Iterator[Markup]:
    """Draw the names of ranks at the left. If there are many, skip all but each 2nd, 4th, ..."""
    each = 1
    # Powers of two give round labels.
    while ranks > each * _MOST_NAMES:
        each *= 2
    for rank in range(0, ranks, each):
        middle = (down(rank) + down(rank + 1)) / 2
        yield element("text", f"rank {rank}", x=LEFT - 10, y=middle + 5, class_="name tick")
