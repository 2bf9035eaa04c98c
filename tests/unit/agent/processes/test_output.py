from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from drumline_agent.processes.output import CUT, MAX_LINE_BYTES, PipeLineSplitter

TEXT = st.lists(
    st.one_of(
        st.binary(max_size=20),
        st.sampled_from([b"\n", b"x" * (MAX_LINE_BYTES - 1), b"y" * (MAX_LINE_BYTES + 1)]),
    ),
    max_size=12,
).map(b"".join)


def split(chunks: list[bytes]) -> list[bytes]:
    splitter = PipeLineSplitter()
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return lines + splitter.finish()


@given(text=TEXT, cuts=st.lists(st.integers(0, 3 * MAX_LINE_BYTES), max_size=6))
def test_lines_do_not_depend_on_how_the_pipe_chops_them(text: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(text)]
    chunks = [text[start:end] for start, end in itertools.pairwise(edges)]
    assert b"".join(chunks) == text

    *ended, rest = text.split(b"\n")
    whole = [*ended, rest] if rest else ended
    expected = [
        line if len(line) <= MAX_LINE_BYTES else line[:MAX_LINE_BYTES] + CUT for line in whole
    ]
    assert split(chunks) == expected


def test_a_line_that_never_ends_is_printed_once_and_not_kept() -> None:
    splitter = PipeLineSplitter()
    first = splitter.feed(b"z" * (MAX_LINE_BYTES + 1))
    later = [line for _ in range(100) for line in splitter.feed(b"z" * 1000)]

    assert first == [b"z" * MAX_LINE_BYTES + CUT]
    assert later == []
    assert splitter.feed(b"z\nnext\n") == [b"next"]
