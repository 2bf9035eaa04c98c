"""The map of the ranks' compute times shows what the status says, inside its frame."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_cli.report import html, rank_map, text
from drumline_cli.report.charts import WIDTH
from drumline_cli.report.model import JobReport
from drumline_contract import ComputePoint
from drumline_contract.rank_compute import MAX_COMPUTE_POINTS, encode, point_of
from tests.texts import missing
from tests.unit.cli.manifests import a_manifest, a_report, a_running_status


def report_of(points: Sequence[ComputePoint], **status: Any) -> JobReport:
    status["computeByRank"] = encode(points)
    return a_report(a_manifest(status=a_running_status(**status)))


def rectangles(markup: str) -> list[ET.Element]:
    return list(ET.fromstring(markup).iter("rect"))  # noqa: S314 - our own


def said_of(markup: str) -> dict[str, str | None]:
    return {each.findtext("title", ""): each.get("class") for each in rectangles(markup)}


POINTS = (
    point_of((1.0, 0.95, 1.0, 1.0), step=100),
    point_of((1.0, 1.0, 1.0, 1.2), step=200),
    point_of((1.0, 0.8, None, 1.3), step=400),
)


def test_neighbours_of_about_the_same_time_are_one_area() -> None:
    drawn = rank_map.rank_map(report_of(POINTS).compute_by_rank)
    assert said_of(drawn) == {
        "ranks 0 to 3: 0.95 to 1 x the median at step 100": "heat band heat-even",
        "ranks 0 to 2: 1 x the median at step 200": "heat band heat-even",
        "rank 3: 1.2 x the median at step 200": "heat band heat-2",
        "rank 0: 1 x the median at step 400": "heat band heat-even",
        "rank 1: 0.8 x the median at step 400": "heat band heat-fast",
        "rank 3: 1.3 x the median at step 400": "heat band heat-2",
    }
    slugs = [band.slug for band in rank_map.bands_in(report_of(POINTS).compute_by_rank)]
    assert slugs == ["heat-fast", "heat-even", "heat-2"]


def test_columns_meet_between_their_steps_and_rows_have_the_height_of_their_ranks() -> None:
    first, *_, last = rectangles(rank_map.rank_map(POINTS))
    quarter = float(first.get("height", "")) / 4
    assert float(last.get("y", "")) == pytest.approx(float(first.get("y", "")) + 3 * quarter)
    # The columns are of the steps 50 to 150, 150 to 300, 300 to 500.
    assert float(last.get("width", "")) / float(first.get("width", "")) == pytest.approx(2, 1e-2)


def test_no_column_begins_before_the_first_step() -> None:
    drawn = rank_map.rank_map([point_of((1.0, 1.0, 1.3), step=step) for step in (10, 900)])
    ticks = ET.fromstring(drawn).iter("text")  # noqa: S314 - our own
    assert not [each.text for each in ticks if (each.text or "").startswith("-")]


def test_a_gang_that_has_grown_is_drawn_by_the_numbers_of_its_ranks() -> None:
    grown = (point_of((1.0,) * 64, step=1), point_of((*(1.0,) * 70, 1.5, *(1.0,) * 57), step=2))
    drawn = rank_map.rank_map(grown)
    smaller, *_ = rectangles(drawn)
    assert float(smaller.get("height", "")) * 2 == pytest.approx(rank_map.MOST_HEIGHT, 1e-2)
    assert "ranks 70 to 71: 1.5 x the median at step 2" in said_of(drawn)
    assert not missing(rank_map.slowest(grown), "ranks 70", "71", "1.5", "step 2")


def test_the_slowest_is_named_with_the_points_since_which_it_is_slow() -> None:
    said = "rank 3, 1.3 x the median at step 400; slow since step 200 (2 points)"
    assert rank_map.slowest(POINTS) == said
    report = report_of(POINTS)
    assert f"  slowest        {said}" in text.render(report, colours=False).splitlines()
    page = html.render(report)
    assert f"<p>Slowest: {said}.</p>" in page
    described = ET.fromstring(rank_map.rank_map(POINTS)).find(".//desc")  # noqa: S314 - our own
    assert described is not None
    assert described.text == f"4 ranks at 3 points, from step 100 to step 400; the slowest: {said}"


def test_where_all_take_about_as_long_none_is_named() -> None:
    even = [point_of((1.0, 1.0, 1.1), step=step) for step in (1, 2)]
    assert not missing(rank_map.slowest(even), "1.1", "step 2")


@pytest.mark.parametrize(
    "compute",
    [None, "", "<script>", "step,ranks,compute\n1,4,5555", "step,ranks,compute\n1,2,--\n2,2,--"],
)
def test_without_two_points_there_is_no_map(compute: str | None) -> None:
    report = a_report(a_manifest(status=a_running_status(computeByRank=compute)))
    assert "rank-map" not in html.sections(report)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.builds(
            point_of,
            st.lists(st.none() | st.floats(0, 4), min_size=1, max_size=150),
            step=st.integers(0, 1 << 53),
        ),
        unique_by=lambda point: point.step,
        max_size=MAX_COMPUTE_POINTS,
    )
)
def test_whatever_the_times_are_they_are_drawn_inside_the_frame(
    points: list[ComputePoint],
) -> None:
    report = report_of(sorted(points, key=lambda point: point.step), series=None)
    drawn = rank_map.rank_map(report.compute_by_rank)
    for cell in rectangles(drawn) if drawn else ():
        x, y, width, height = (float(cell.get(name, "")) for name in ("x", "y", "width", "height"))
        assert min(x, y, width, height) >= 0
        assert x + width <= WIDTH
        assert y + height <= rank_map.MOST_HEIGHT + 9
    assert max(map(len, text.render(report, colours=False).splitlines())) <= text.WIDTH
