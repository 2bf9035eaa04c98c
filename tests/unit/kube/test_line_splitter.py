"""Lines come out whole, however the network cut them, and memory stays bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from drumline.kube.line_splitter import Oversized, WatchLineSplitter


def _cut(stream: bytes, sizes: list[int]) -> list[bytes]:
    chunks = []
    for size in sizes:
        chunks.append(stream[:size])
        stream = stream[size:]
    return [*chunks, stream]


@given(
    lines=st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"")), max_size=8),
    sizes=st.lists(st.integers(0, 30), max_size=20),
)
def test_any_chunking_gives_the_same_lines(lines: list[bytes], sizes: list[int]) -> None:
    splitter = WatchLineSplitter(max_line_bytes=25)
    stream = b"".join(line + b"\n" for line in lines)
    got = [line for chunk in _cut(stream, sizes) for line in splitter.feed(chunk)]
    assert got == [
        line if len(line) <= 25 else Oversized(size_bytes=len(line)) for line in lines if line
    ]


def test_a_line_that_has_not_ended_is_kept_back() -> None:
    splitter = WatchLineSplitter()
    assert splitter.feed(b'{"half":') == []
    assert splitter.feed(b"1}\n") == [b'{"half":1}']


def test_an_endless_line_is_not_kept_in_memory() -> None:
    splitter = WatchLineSplitter(max_line_bytes=100)
    for _ in range(1000):
        assert splitter.feed(b"x" * 50) == []
    assert sum(map(len, splitter._parts)) <= 100
    assert splitter.feed(b"\nnext\n") == [Oversized(size_bytes=50_000), b"next"]
