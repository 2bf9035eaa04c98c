from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline_trainer.data.learned_spans import LearnedSpans, moved, runs_of

masks = st.lists(st.booleans(), min_size=1, max_size=60).map(np.array)


@given(mask=masks, data=st.data())
def test_spans_are_the_mask_they_were_made_of(mask: np.ndarray, data: st.DataObject) -> None:
    spans = LearnedSpans.of(runs_of(mask))
    start = data.draw(st.integers(0, len(mask)))
    stop = data.draw(st.integers(start, len(mask)))
    assert spans.mask(start, stop).tolist() == mask[start:stop].tolist()
    positions = np.arange(len(mask) + 3)
    assert spans.before(positions).tolist() == [int(mask[:n].sum()) for n in positions]


@given(pieces=st.lists(masks, min_size=1, max_size=5))
def test_pieces_lie_end_to_end(pieces: list[np.ndarray]) -> None:
    begins = np.cumsum([0, *(len(piece) for piece in pieces[:-1])])
    spans = LearnedSpans.of(moved([runs_of(piece) for piece in pieces], begins))
    whole = np.concatenate(pieces)
    assert spans.mask(0, len(whole)).tolist() == whole.tolist()


@pytest.mark.parametrize("pairs", [[[2, 2]], [[3, 1]], [[0, 4], [3, 5]], [[4, 5], [0, 1]]])
def test_what_is_no_list_of_spans_is_refused(pairs: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="ascending"):
        LearnedSpans.of(np.array(pairs))
