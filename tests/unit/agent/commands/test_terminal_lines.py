from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from drumline_agent.commands.terminal_lines import TerminalLineSplitter


def test_each_state_of_a_progress_bar_is_a_line() -> None:
    splitter = TerminalLineSplitter()
    assert splitter.feed(b"10%\r20%\r{'loss': 2}\nnext\r\n30%") == [
        *(b"10%\r", b"20%\r", b"{'loss': 2}", b"next")
    ]
    assert splitter.finish() == [b"30%"]


@given(chunks=st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\r\n"]), max_size=12))
def test_lines_do_not_depend_on_how_the_pipe_cuts_them(chunks: list[bytes]) -> None:
    whole, parts = TerminalLineSplitter(), TerminalLineSplitter()
    expected = whole.feed(b"".join(chunks)) + whole.finish()
    lines = [line for byte in b"".join(chunks) for line in parts.feed(bytes([byte]))]
    assert lines + parts.finish() == expected
