"""Encode continued prompts as a text within its bounds, and decode it."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from drumline_contract import plain
from drumline_contract.prompt_answers import MAX_ANSWERS_CHARS, MOST_PROMPTS, decode, encode

TEXTS = st.one_of(st.text(max_size=40), st.text(alphabet='\\"\u4e2d\U0001f600', max_size=3000))


@given(st.integers(0, 10**9), st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=MOST_PROMPTS))
def test_every_prompt_is_kept_within_the_bounds(step: int, pairs: list[tuple[str, str]]) -> None:
    text = encode(step, pairs)
    assert len(text) <= MAX_ANSWERS_CHARS
    assert len(json.dumps(text)) <= 2 * MAX_ANSWERS_CHARS  # a line of a rank has at most 16 KiB
    read = decode(text)
    assert read.step == step
    for kept, said in zip(read.pairs, pairs, strict=True):
        for short, whole in zip(kept, map(plain, said), strict=True):
            assert short == whole or plain(whole).startswith(short.removesuffix("\u2026"))


@given(
    st.text(max_size=100)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps)
)
def test_any_text_of_a_pod_is_read_or_ignored(text: str) -> None:
    read = decode(text)
    assert all(each == plain(each) for pair in read.pairs for each in pair)


def test_no_prompt_is_no_text() -> None:
    assert encode(3, []) == ""
    assert not decode("").pairs
