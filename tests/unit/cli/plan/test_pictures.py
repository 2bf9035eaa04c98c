"""Pictures of a plan: what is drawn, and what stands beside it as text."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from drumline_cli.plan.pictures import front_picture, memory_picture, step_picture
from drumline_planner.search import Planned, pareto
from drumline_planner.step_time import StepBottleneck
from tests.unit.trainer.planner.clusters import goal


@pytest.fixture(scope="module")
def front() -> tuple[Planned, ...]:
    return pareto(goal(8, batch=16, max_micro_batch=2), most=4)


def shapes(markup: str) -> str:
    return markup.partition("<svg")[2].partition("</svg>")[0]


def test_a_band_fills_the_page_and_its_legend_is_text_beside_it(front: tuple[Planned, ...]) -> None:
    """Words inside a picture that shrinks with the page cannot be read on a phone."""
    bill = front[0].bill
    drawn = memory_picture(bill)
    assert 'preserveAspectRatio="none"' in drawn
    assert "<text" not in shapes(drawn)
    legend = drawn.partition("<ul")[2]
    assert all(f">{line.name}: " in legend.replace("</i>", ">") for line in bill.lines)
    assert legend.count("<li>") == len(bill.lines) + 1  # and what may be used


def test_what_may_be_used_is_marked_and_named_also_where_it_does_not_suffice(
    front: tuple[Planned, ...],
) -> None:
    bill = front[0].bill
    widths = [float(each) for each in re.findall(r'width="([\d.]+)"', memory_picture(bill))]
    limit = re.search(r'x1="([\d.]+)"[^>]*class="limit"', memory_picture(bill))
    assert limit is not None
    assert sum(widths) <= float(limit[1])
    assert "usable" in memory_picture(bill)


def test_parts_of_a_step_below_a_thousandth_are_left_out(front: tuple[Planned, ...]) -> None:
    time = front[0].time
    tiny = {**time.parts, StepBottleneck.HOST: time.seconds / 1001}
    drawn = step_picture(replace(front[0], time=replace(time, parts=tiny)))
    assert str(StepBottleneck.PRODUCTS) in drawn
    assert str(StepBottleneck.HOST) not in drawn


def test_points_of_the_front_have_numbers_and_corners(front: tuple[Planned, ...]) -> None:
    """Between two layouts there is none: the line goes level and then down, not across."""
    drawn = front_picture(front)
    labels = re.findall(r">(\d)</text>", drawn)
    assert [str(number) for number in range(1, len(front) + 1)] == labels[-len(front) :]
    path = re.search(r'd="M([^"]+)"', drawn)
    assert path is not None
    points = [tuple(map(float, point.split())) for point in path[1].split("L")]
    assert len(points) == 2 * len(front) - 1
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(points))
