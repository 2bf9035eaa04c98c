"""The charts over the steps show what the series says, inside their frame."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from drumline_cli.report import step_charts, text
from drumline_cli.report.model import JobReport
from drumline_cli.report.text import sparkline
from drumline_contract import StepPoint
from drumline_contract.step_series import MAX_POINTS, PARTS, encode
from tests.unit.cli.manifests import a_manifest, a_report, a_running_status, an_incident


def report_of(*points: StepPoint, **status: Any) -> JobReport:
    return a_report(a_manifest(status=a_running_status(series=encode(points), **status)))


POINTS = (
    StepPoint(step=3000, generation=2, checkpoint=2000, loss=4.5),
    StepPoint(step=3800, generation=2, checkpoint=3000, loss=3.5, tokens_per_second=8e5),
    StepPoint(step=4200, generation=3, checkpoint=4000, loss=2.5, tokens_per_second=7e5),
)


def titles(markup: str) -> list[str]:
    return [each.text or "" for each in ET.fromstring(markup).iter("title")]  # noqa: S314 - our own


def corners(shape: ET.Element) -> list[tuple[float, float]]:
    """Return the corners of a polygon or polyline."""
    pairs = (corner.split(",") for corner in shape.get("points", "").split())
    return [(float(x), float(y)) for x, y in pairs]


def seconds_of(root: ET.Element) -> Callable[[float], float]:
    """Return the scale of a picture, read from its own ticks."""
    heights = [float(line.get("y1", "")) for line in root.iter("line")]
    figures = [
        float(each.text or "") for each in root.iter("text") if "name" in each.get("class", "")
    ]
    slope = (figures[-1] - figures[0]) / (heights[-1] - heights[0])
    return lambda y: figures[0] + slope * (y - heights[0])


def test_the_loss_has_marks_for_checkpoints_memberships_and_incidents() -> None:
    report = report_of(*POINTS, lastIncident=an_incident(failedStep=3804))
    said = titles(step_charts.line(report, "Loss"))
    assert "Loss 3.5 at step 3\N{NO-BREAK SPACE}800" in said
    assert "checkpoint of step 4\N{NO-BREAK SPACE}000" in said
    assert "checkpoint of step 2\N{NO-BREAK SPACE}000" not in said  # before the first point
    assert "generation 3 trains from step 3\N{NO-BREAK SPACE}800" in said
    assert any(each.startswith("Infrastructure at step 3\N{NO-BREAK SPACE}804") for each in said)


def test_an_incident_outside_of_the_series_is_not_marked_on_it() -> None:
    report = report_of(*POINTS, lastIncident=an_incident(failedStep=9000))
    assert not [each for each in titles(step_charts.line(report, "Loss")) if "Infra" in each]


@pytest.mark.parametrize("title", ["Gradient norm", "Seconds a step"])
def test_a_figure_that_nobody_reports_has_no_chart(title: str) -> None:
    report = report_of(*POINTS)
    assert not step_charts.line(report, title)
    assert title.lower() not in text.render(report, colours=False)


def test_parts_are_stacked_to_the_seconds_of_a_step() -> None:
    points = [
        StepPoint(step=10, step_seconds=2.0, parts={"compute": 750, "saving": 250}),
        StepPoint(step=20, step_seconds=4.0, parts={"compute": 500, "data": 500}),
    ]
    root = ET.fromstring(step_charts.parts(points))  # noqa: S314 - our own
    seconds = seconds_of(root)
    tops = {
        polygon.get("class"): [seconds(y) for _, y in corners(polygon)[:2]]
        for polygon in root.iter("polygon")
    }
    assert tops == {
        "band part-compute": pytest.approx([1.5, 2.0], abs=0.01),
        "band part-data": pytest.approx([1.5, 4.0], abs=0.01),
        "band part-saving": pytest.approx([2.0, 4.0], abs=0.01),
    }
    assert step_charts.parts_in(points) == ("compute", "data", "saving")
    assert not step_charts.parts(points[:1])


figures = st.none() | st.floats(-1e15, 1e15)


@settings(deadline=None, max_examples=40)
@example([StepPoint(step=1, loss=0.0), StepPoint(step=2, loss=2e-323)])
@given(
    st.lists(
        st.builds(
            StepPoint,
            step=st.integers(0, 1 << 53),
            loss=figures,
            step_seconds=figures,
            parts=st.dictionaries(st.sampled_from(PARTS), st.integers(1, 1000)),
        ),
        unique_by=lambda point: point.step,
        max_size=MAX_POINTS,
    )
)
def test_whatever_the_figures_are_they_are_drawn_inside_the_frame(points: list[StepPoint]) -> None:
    report = report_of(*sorted(points, key=lambda point: point.step))
    charts = (step_charts.line(report, "Loss"), step_charts.parts(report.series))
    for drawn in (ET.fromstring(chart) for chart in charts if chart):  # noqa: S314 - our own
        (svg,) = drawn.iter("svg")
        width, height = map(float, svg.get("viewBox", "").split()[2:])
        for x, y in (corner for shape in svg.iter() for corner in corners(shape)):
            assert 0 <= x <= width
            assert 0 <= y <= height
    assert max(map(len, text.render(report, colours=False).splitlines())) <= text.WIDTH


def test_a_sparkline_goes_from_the_lowest_to_the_highest() -> None:
    assert sparkline([4.0, 3.0, 2.0]) == "█▅▁"
    assert sparkline([1.0, 1.0]) == "▅▅"


def test_the_text_shows_the_first_and_the_last_figure() -> None:
    shown = text.render(report_of(*POINTS), colours=False)
    assert "Training, steps 3\N{NO-BREAK SPACE}000 to 4\N{NO-BREAK SPACE}200" in shown
    assert "4.5 █▅▁ 2.5" in shown
