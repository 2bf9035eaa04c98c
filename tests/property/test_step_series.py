"""A series stays small, rises, keeps its ends, and is read whatever a tenant makes of it."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_contract import MAX_SERIES_CHARS, StepPoint
from drumline_contract.step_series import MAX_POINTS, PARTS, decode, encode, thinned, with_newer

figures = st.none() | st.floats()
shares = st.dictionaries(st.sampled_from(PARTS), st.integers(1, 1000))


@st.composite
def a_series(draw: st.DrawFn, *, longest: int = 120) -> list[StepPoint]:
    """Points at rising steps with figures of all kinds."""
    steps = draw(st.lists(st.integers(0, 1 << 53), unique=True, max_size=longest))
    return [
        StepPoint(
            step=step,
            generation=draw(st.none() | st.integers(0, 99)),
            loss=draw(figures),
            step_seconds=draw(figures),
            parts=draw(shares),
        )
        for step in sorted(steps)
    ]


@settings(deadline=None, max_examples=60)
@given(a_series(), st.integers(2, MAX_POINTS))
def test_thinning_keeps_measured_points_and_both_ends(points: list[StepPoint], most: int) -> None:
    kept = thinned(points, most=most)
    assert len(kept) == min(len(points), most)
    assert set(map(id, kept)) <= set(map(id, points))
    if points:
        assert (kept[0], kept[-1]) == (points[0], points[-1])


@settings(deadline=None, max_examples=60)
@given(a_series())
def test_a_text_is_bounded_and_read_back_as_it_was_written(points: list[StepPoint]) -> None:
    text = encode(thinned(points, most=MAX_POINTS))
    assert len(text) <= MAX_SERIES_CHARS
    read = decode(text)
    assert encode(read) == text
    assert [point.step for point in read] == sorted({point.step for point in read})


@settings(deadline=None)
@given(
    st.text()
    | st.text(alphabet="step,los\n0123456789.-einfa", max_size=400).map("step,loss\n".__add__)
)
def test_any_text_is_read_as_rising_points_with_finite_figures(text: str) -> None:
    points = decode(text)
    assert len(points) <= MAX_POINTS
    assert all(a.step < b.step for a, b in itertools.pairwise(points))
    assert encode(decode(encode(points))) == encode(points)
    assert all(point.loss is None or abs(point.loss) <= 1e15 for point in points)


@settings(deadline=None, max_examples=60)
@given(a_series(longest=40), a_series(longest=16))
def test_newer_points_end_a_series_and_the_steps_done_again_replace_the_first(
    known: list[StepPoint], recent: list[StepPoint]
) -> None:
    whole = with_newer(known, recent, most=MAX_POINTS)
    steps = [point.step for point in whole]
    assert steps == sorted(set(steps))
    assert len(whole) <= MAX_POINTS
    if recent and known and recent[-1].step < known[-1].step:
        assert whole[-1] is recent[-1]
    elif recent or known:
        assert steps[-1] == max(point.step for point in [*known, *recent])
