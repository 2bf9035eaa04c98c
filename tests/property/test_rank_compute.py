"""Compute times of ranks stay small, rise in steps, and are read whatever a tenant sends."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_contract import MAX_COMPUTE_CHARS, ComputePoint
from drumline_contract.rank_compute import MAX_COMPUTE_POINTS, MAX_ROWS, decode, encode, point_of
from drumline_contract.step_series import thinned, with_newer


@st.composite
def some_points(draw: st.DrawFn, *, longest: int = 40) -> list[ComputePoint]:
    """Points of gangs of all sizes, with figures of all kinds."""
    steps = draw(st.lists(st.integers(0, 1 << 53), unique=True, max_size=longest))
    ratios = st.lists(st.none() | st.floats(), min_size=1, max_size=5)
    times = st.sampled_from([1, 13, 64])
    return [point_of(draw(ratios) * draw(times), step=step) for step in sorted(steps)]


@settings(deadline=None, max_examples=60)
@given(some_points(), some_points(longest=8))
def test_a_text_is_bounded_and_read_back_as_it_was_written(
    known: list[ComputePoint], recent: list[ComputePoint]
) -> None:
    first = thinned(known, most=MAX_COMPUTE_POINTS)
    text = encode(with_newer(first, recent, most=MAX_COMPUTE_POINTS))
    assert len(text) <= MAX_COMPUTE_CHARS
    assert encode(decode(text)) == text
    assert bool(decode(text)) == bool(known or recent)


@settings(deadline=None)
@given(
    st.text()
    | st.text(alphabet="0123456789az-,\n", max_size=400).map("step,ranks,compute\n".__add__)
    | st.lists(
        st.tuples(st.integers(0, 99), st.integers(0, 4), st.text("5a-<", max_size=4)), max_size=60
    ).map(lambda rows: "\n".join(["step,ranks,compute", *(f"{a},{b},{c}" for a, b, c in rows)]))
)
def test_any_text_is_read_as_few_rising_points_of_bounded_rows(text: str) -> None:
    points = decode(text)
    assert len(points) <= MAX_COMPUTE_POINTS
    assert all(a.step < b.step for a, b in itertools.pairwise(points))
    assert all(1 <= len(point.ratios) <= MAX_ROWS for point in points)
    ratios = [ratio for point in points for ratio in point.ratios if ratio is not None]
    assert all(0.75 <= ratio <= 2.5 for ratio in ratios)
    assert encode(decode(encode(points))) == encode(points)
