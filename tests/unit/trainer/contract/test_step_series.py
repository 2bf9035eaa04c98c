"""The text of a series, and how one goes on."""

from __future__ import annotations

import itertools

from drumline_contract import MAX_SERIES_CHARS, StepPoint
from drumline_contract.step_series import (
    MAX_POINTS,
    PARTS,
    decode,
    encode,
    shares_of,
    thinned,
    with_newer,
)


def points(*steps: int, generation: int = 1) -> list[StepPoint]:
    return [StepPoint(step=step, generation=generation) for step in steps]


def test_columns_without_a_figure_are_left_out() -> None:
    series = [
        StepPoint(step=10, loss=4.29912, parts={"compute": 900, "saving": 100}),
        StepPoint(step=20, tokens_per_second=3230.0, parts={"compute": 1000}),
    ]
    text = encode(series)
    assert text == ("step,loss,tokensPerSecond,compute,saving\n10,4.299,,900,100\n20,,3230,1000,")
    assert decode(text)[1] == series[1]
    assert encode(()) == ""
    assert decode("") == ()


def test_the_point_between_the_closest_neighbours_goes() -> None:
    assert [point.step for point in thinned(points(1, 2, 3, 9), most=3)] == [1, 3, 9]


def test_what_is_kept_of_a_steady_run_lies_about_evenly() -> None:
    kept: tuple[StepPoint, ...] = ()
    for step in range(600):
        kept = with_newer(kept, points(step), most=16)
        gaps = [later.step - earlier.step for earlier, later in itertools.pairwise(kept)]
        assert max(gaps, default=0) <= max(1, 3 * step / 15)


def test_a_run_that_goes_back_replaces_the_steps_done_again() -> None:
    known, again = points(10, 20, 30, 40), points(25, 32, generation=2)
    assert [(each.step, each.generation) for each in with_newer(known, again, most=9)] == [
        *((10, 1), (20, 1)),
        *((25, 2), (32, 2)),
    ]
    assert with_newer(known, points(35, 45), most=9)[-2:] == tuple(points(40, 45))


def test_a_full_series_of_the_longest_figures_fits() -> None:
    longest = [
        StepPoint(
            step=(1 << 52) + step,
            generation=1 << 20,
            checkpoint=1 << 52,
            loss=-1.234e-14,
            gradient_norm=-1.234e14,
            tokens_per_second=1.234e14,
            step_seconds=1.234e-14,
            parts=dict.fromkeys(PARTS, 111),
        )
        for step in range(MAX_POINTS)
    ]
    text = encode(longest)
    assert len(text) <= MAX_SERIES_CHARS
    assert decode(text)[-1] == longest[-1]
    assert len(decode(text)) > MAX_POINTS / 2


def test_rows_that_are_no_points_are_passed_over() -> None:
    rows = ["7,1.5", "6,1.0", "x,1", "8", "9,nan", "9,2,3", f"{1 << 60},1", "10,-inf", "11,1e99"]
    text = "\n".join(["step,loss", *rows])
    assert [(each.step, each.loss) for each in decode(text)] == [
        *((7, 1.5), (9, None)),
        *((10, None), (11, None)),
    ]
    assert decode("loss\n1") == ()


def test_shares_are_thousandths_of_the_whole() -> None:
    assert shares_of({"compute": 2.0, "data": 1.0, "rest": 0.0}) == {"compute": 667, "data": 333}
    assert shares_of({}) == shares_of({"compute": 0.0}) == {}
    assert shares_of({"compute": float("nan")}) == {}
