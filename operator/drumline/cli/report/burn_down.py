"""What is left of a queue's budget over its days as inline SVG, and what is expected to be left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drumline.cli.formatting import count, day
from drumline.cli.markup import Markup, element
from drumline.cli.report.charts import WIDTH, axis, picture, slug
from drumline.cli.report.figure_axis import FigureAxis, spanning
from drumline.cli.report.time_axis import TimeAxis
from drumline.overview.rows import BudgetDay, BudgetRow

_LEFT: Final = 72
_HEIGHT: Final = 120


def burn_down(queue: str, budget: BudgetRow) -> Markup:
    """The picture; empty where the operator has written no days yet."""
    if not budget.left:
        return Markup("")
    now = budget.left[-1]
    whole = [*budget.left, *budget.expected]
    across = TimeAxis(
        begins=whole[0].at,
        span=whole[-1].at - whole[0].at,
        left=_LEFT,
        width=WIDTH - _LEFT - 12,
    )
    figures = [0.0, float(budget.gpu_hours), *(each.left_gpu_hours for each in whole)]
    up = spanning(figures, at_low=_HEIGHT, at_high=8)
    return picture(
        f"budget-{slug(queue)}",
        f"What is left of the budget of queue {queue}",
        _description(budget, now),
        axis(across, bottom=_HEIGHT),
        *_levels(budget, up),
        _line(budget.left, across, up, class_="line"),
        _line([now, *budget.expected], across, up, class_="line expected"),
        element("line", x1=across(now.at), y1=0, x2=across(now.at), y2=_HEIGHT, class_="now"),
        height=_HEIGHT + 26,
    )


def _description(budget: BudgetRow, now: BudgetDay) -> str:
    said = f"{count(now.left_gpu_hours)} of {count(budget.gpu_hours)} GPU-hours are left"
    if budget.spent_at is not None:
        return f"{said}; spent on {day(budget.spent_at)} if it holds what it holds now"
    if budget.back_at is not None:
        return f"{said}; some flows back on {day(budget.back_at)} if it holds what it holds now"
    return f"{said}; not spent within its days if it holds what it holds now"


def _levels(budget: BudgetRow, up: FigureAxis) -> list[Markup]:
    levels: list[Markup] = []
    for level in (0, budget.gpu_hours):
        y = up(level)
        levels.append(element("line", x1=_LEFT, y1=y, x2=WIDTH - 12, y2=y, class_="grid"))
        levels.append(element("text", count(level), x=_LEFT - 10, y=y + 5, class_="name tick"))
    return levels


def _line(days: Sequence[BudgetDay], across: TimeAxis, up: FigureAxis, *, class_: str) -> Markup:
    points = " ".join(f"{across(each.at):.0f},{up(each.left_gpu_hours):.0f}" for each in days)
    return element("polyline", points=points, class_=class_)
