"""Draw a queue's remaining budget over its days as inline SVG, with the forecast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from drumline.overview.rows import BudgetRow
from drumline_cli.formatting import count, day
from drumline_cli.markup import Markup, element, joined
from drumline_cli.report.charts import WIDTH, axis, picture, slug
from drumline_cli.report.figure_axis import FigureAxis, spanning
from drumline_cli.report.time_axis import TimeAxis

_LEFT: Final = 72
_HEIGHT: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class _DrawnBound:
    """One bound of a budget, with what was and will be left of it at moments."""

    name: str
    whole: float
    unit: str
    left: Sequence[tuple[float, float]]
    expected: Sequence[tuple[float, float]]
    spent_at: float | None
    back_at: float | None


def burn_down(queue: str, budget: BudgetRow) -> Markup:
    """Return a picture of the GPU-hours and one of the money, if the status has days."""
    return joined(*(_picture(queue, bound) for bound in _bounds(budget) if bound.left))


def _bounds(budget: BudgetRow) -> Iterator[_DrawnBound]:
    yield _DrawnBound(
        name="budget",
        whole=float(budget.gpu_hours),
        unit="GPU-hours",
        left=[(each.at, each.left_gpu_hours) for each in budget.left],
        expected=[(each.at, each.left_gpu_hours) for each in budget.expected],
        spent_at=budget.spent_at,
        back_at=budget.back_at,
    )
    if budget.money is not None:
        yield _DrawnBound(
            name="money",
            whole=float(budget.cost),
            unit="in money",
            left=[(each.at, each.left) for each in budget.money.left],
            expected=[(each.at, each.left) for each in budget.money.expected],
            spent_at=budget.money.spent_at,
            back_at=budget.money.back_at,
        )


def _picture(queue: str, bound: _DrawnBound) -> Markup:
    now = bound.left[-1]
    moments = [*bound.left, *bound.expected]
    across = TimeAxis(
        begins=moments[0][0],
        span=moments[-1][0] - moments[0][0],
        left=_LEFT,
        width=WIDTH - _LEFT - 12,
    )
    figures = [0.0, bound.whole, *(left for _, left in moments)]
    up = spanning(figures, at_low=_HEIGHT, at_high=8)
    return picture(
        f"{bound.name}-{slug(queue)}",
        f"Remaining {bound.name} of queue {queue}",
        _description(bound, now[1]),
        axis(across, bottom=_HEIGHT),
        *_levels(bound.whole, up),
        _line(bound.left, across, up, class_="line"),
        _line([now, *bound.expected], across, up, class_="line expected"),
        element("line", x1=across(now[0]), y1=0, x2=across(now[0]), y2=_HEIGHT, class_="now"),
        height=_HEIGHT + 26,
    )


def _description(bound: _DrawnBound, left: float) -> str:
    said = f"{count(left)} of {count(bound.whole)} {bound.unit} remain"
    if bound.spent_at is not None:
        return f"{said}; used up on {day(bound.spent_at)} at the current usage"
    if bound.back_at is not None:
        return f"{said}; some becomes available again on {day(bound.back_at)} at the current usage"
    return f"{said}; not used up within the window at the current usage"


def _levels(whole: float, up: FigureAxis) -> list[Markup]:
    levels: list[Markup] = []
    for level in (0, whole):
        y = up(level)
        levels.append(element("line", x1=_LEFT, y1=y, x2=WIDTH - 12, y2=y, class_="grid"))
        levels.append(element("text", count(level), x=_LEFT - 10, y=y + 5, class_="name tick"))
    return levels


def _line(
    moments: Sequence[tuple[float, float]], across: TimeAxis, up: FigureAxis, *, class_: str
) -> Markup:
    points = " ".join(f"{across(at):.0f},{up(left):.0f}" for at, left in moments)
    return element("polyline", points=points, class_=class_)
