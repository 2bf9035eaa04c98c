from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_trainer.sharding.boxes import Box, tiles


@st.composite
def boxes_in(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    offsets = tuple(draw(st.integers(0, n - 1)) for n in shape)
    sizes = tuple(draw(st.integers(1, n - o)) for n, o in zip(shape, offsets, strict=True))
    return Box(offsets=offsets, shape=sizes)


def marked(box: Box, shape: tuple[int, ...]) -> np.ndarray:
    cells = np.zeros(shape, dtype=int)
    cells[box.slices_within(Box(offsets=(0,) * len(shape), shape=shape))] = 1
    return cells


@settings(deadline=None)
@given(a=boxes_in((5, 4)), b=boxes_in((5, 4)))
def test_intersection_is_the_common_cells(a: Box, b: Box) -> None:
    common = a.intersection(b)
    expected = marked(a, (5, 4)) * marked(b, (5, 4))
    got = np.zeros((5, 4), dtype=int) if common is None else marked(common, (5, 4))
    assert (got == expected).all()


@settings(max_examples=300, deadline=None)
@given(boxes=st.lists(boxes_in((3, 2)), max_size=4))
def test_tiles_means_that_every_cell_is_covered_once(boxes: list[Box]) -> None:
    covered = sum((marked(box, (3, 2)) for box in boxes), np.zeros((3, 2), dtype=int))
    assert tiles((3, 2), boxes) == bool((covered == 1).all())


def box(offsets: tuple[int, ...], shape: tuple[int, ...]) -> Box:
    return Box(offsets=offsets, shape=shape)


@pytest.mark.parametrize(
    ("shape", "boxes", "expected"),
    [
        pytest.param((4, 4), [box((0, 0), (4, 2)), box((0, 2), (4, 2))], True, id="columns"),
        pytest.param((4,), [box((0,), (2,)), box((3,), (2,))], False, id="past the end"),
        pytest.param((4,), [box((0,), (3,)), box((2,), (1,))], False, id="overlap and gap"),
        pytest.param((4,), [box((0,), (4,)), box((0,), (0,))], False, id="empty piece"),
        pytest.param((), [box((), ())], True, id="scalar"),
        pytest.param((), [], False, id="scalar without a piece"),
        pytest.param((0, 3), [], True, id="nothing to cover"),
        pytest.param((4,), [box((0, 0), (4, 1))], False, id="other dimensions"),
    ],
)
def test_tiles_at_the_edges(shape: tuple[int, ...], boxes: list[Box], expected: bool) -> None:
    assert tiles(shape, boxes) is expected


def test_a_box_needs_equal_dimensions() -> None:
    with pytest.raises(ValueError, match="dimensions"):
        Box(offsets=(0,), shape=(1, 2))
