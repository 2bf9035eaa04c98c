from __future__ import annotations

import itertools

from drumline_trainer.data import contents
from drumline_trainer.data.contents import content_digest, other_format

BLOCK = 64 << 10


def test_of_much_content_samples_of_all_parts_are_read() -> None:
    size = 1 << 40
    reads: list[tuple[int, int]] = []

    def read(start: int, length: int) -> bytes:
        reads.append((start, start + length))
        return b""

    content_digest(read, size=size)
    assert len(reads) == 4096
    assert (reads[0], reads[-1]) == ((0, BLOCK), (size - BLOCK, size))
    gaps = {after[0] - before[0] for before, after in itertools.pairwise(reads)}
    assert max(gaps) - min(gaps) <= 1


def test_of_little_every_byte_counts() -> None:
    text = bytes(200_000)
    digests = {content_digest(lambda a, n: text[a : a + n], size=len(text))}
    for place in (0, BLOCK - 1, BLOCK, len(text) - 1):
        edited = bytearray(text)
        edited[place] = 1
        digests.add(content_digest(lambda a, n, e=edited: bytes(e[a : a + n]), size=len(text)))
    digests.add(content_digest(lambda a, n: text[a : a + n], size=len(text) - 1))
    assert len(digests) == 6


def test_text_has_no_other_format() -> None:
    for text in (b"", b"def f(): pass\n", "für".encode(), "für".encode("latin-1"), b'{"a": 1}'):
        assert other_format("a.txt", text) is None
    assert contents.HEAD_BYTES >= 262  # where a tar says what it is
