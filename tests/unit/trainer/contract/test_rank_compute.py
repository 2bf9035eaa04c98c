"""The text of the ranks' compute times: characters, rows of large gangs, its bounds."""

from __future__ import annotations

import math

import pytest

from drumline_contract.rank_compute import (
    MAX_COMPUTE_CHARS,
    MAX_COMPUTE_POINTS,
    MAX_ROWS,
    ComputePoint,
    decode,
    encode,
    point_of,
    ranks_of_row,
    ranks_per_row,
)


def test_a_character_is_five_percent_of_the_median() -> None:
    slows = [point_of((1.0, 0.99, 1.02, 1.06), step=10), point_of((1.0, 1.0, None, 1.35), step=20)]
    text = encode(slows)
    assert text == "step,ranks,compute\n10,4,5556\n20,4,55-c"
    assert [point.ratios for point in decode(text)] == [
        (1.0, 1.0, 1.0, 1.05),
        (1.0, 1.0, None, 1.35),
    ]
    assert (encode(()), decode("")) == ("", ())


@pytest.mark.parametrize(
    ("ratio", "character"),
    [(0.0, "0"), (0.7, "0"), (2.5, "z"), (1e9, "z"), (math.inf, "z"), (math.nan, "-")],
)
def test_what_is_beyond_the_characters_is_at_their_end(ratio: float, character: str) -> None:
    assert encode([point_of([ratio], step=1)]).endswith(f",{character}")


def test_neighbours_in_a_large_gang_share_the_row_of_their_slowest() -> None:
    ratios: list[float | None] = [1.0] * 130
    ratios[4], ratios[129] = 1.5, None
    point = point_of(ratios, step=3)
    assert (ranks_per_row(130), len(point.ratios), point.ranks) == (3, 44, 130)
    assert [row for row, ratio in enumerate(point.ratios) if ratio != 1.0] == [1, 43]
    assert (point.ratios[1], point.ratios[43]) == (1.5, None)
    assert (ranks_of_row(1, ranks=130), ranks_of_row(43, ranks=130)) == (
        range(3, 6),
        range(129, 130),
    )
    assert ranks_of_row(63, ranks=64) == range(63, 64)


def test_points_of_the_largest_gang_late_in_a_long_run_fit() -> None:
    points = [
        ComputePoint(step=(1 << 52) + step, ranks=1 << 20, ratios=(2.5,) * MAX_ROWS)
        for step in range(MAX_COMPUTE_POINTS)
    ]
    text = encode(points)
    assert len(text) <= MAX_COMPUTE_CHARS
    read = decode(text)
    assert len(read) >= 20
    assert (read[0], read[-1]) == (points[0], points[-1])


@pytest.mark.parametrize(
    "row",
    [
        pytest.param("9,4,5555", id="no later step"),
        pytest.param("20,4,555", id="too few characters"),
        pytest.param("20,4,55555", id="too many"),
        pytest.param("20,4,55 5", id="a character of another kind"),
        pytest.param("20,4,55\N{ARABIC-INDIC DIGIT FIVE}5", id="a digit that is none of ours"),
        pytest.param("20,0,", id="no rank"),
        pytest.param(f"20,{1 << 40},{'5' * 64}", id="more ranks than there are"),
        pytest.param("x,4,5555", id="no step"),
        pytest.param("20,4,5555,1", id="more cells"),
    ],
)
def test_rows_that_are_no_points_are_passed_over(row: str) -> None:
    text = f"step,ranks,compute\n10,4,5555\n{row}\n30,4,5556"
    assert [point.step for point in decode(text)] == [10, 30]


def test_another_head_is_of_no_text_of_ours() -> None:
    assert decode("step,ranks,compute,more\n10,4,5555") == ()
