"""Writes one shard: tokens, document ends and the digest of every block, in one pass.

Files are renamed to their names once they are complete and on the disk; before, they end in
`.partial`.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from drumline_trainer.data.shards.index import TOKEN_TYPES, ShardFile, ShardRecord

BLOCK_BYTES = 256 * 1024
PARTIAL = ".partial"


class ShardWriter:
    """A shard being written. Leaving the `with` block closes it, finished or not.

    Args:
        folder: folder of the corpus.
        number: number of the shard.
        token_type: dtype of the tokens.
        block_bytes: size of a digested block.
    """

    def __init__(
        self, folder: Path, number: int, *, token_type: str, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self._folder = folder
        self._stem = f"shard-{number:05d}"
        self._type = np.dtype(token_type).newbyteorder("<")
        self._block_bytes = block_bytes
        self._file = (folder / f"{self._stem}.bin{PARTIAL}").open("wb")
        self._whole = hashlib.sha256()
        self._sums: list[bytes] = []
        self._pending = bytearray()
        self._ends = array("Q")
        self._learned: list[npt.NDArray[np.int64]] | None = None
        self.tokens = 0

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._file.close()

    def add(self, document: list[int], *, learned: npt.NDArray[np.int64] | None = None) -> None:
        """Append a document of at least one token.

        `learned` has the format of `records.EncodedDocument.learned`. Set it for all documents or
        for none.
        """
        if learned is not None:
            self._learned = self._learned or []
            self._learned.append(learned + self.tokens)
        self._pending += np.array(document, dtype=self._type).tobytes()
        self.tokens += len(document)
        self._ends.append(self.tokens)
        while len(self._pending) >= self._block_bytes:
            self._write(bytes(self._pending[: self._block_bytes]))
            del self._pending[: self._block_bytes]

    def finish(self) -> ShardRecord:
        """Write and fsync everything, then rename the files to their names."""
        if self._pending:
            self._write(bytes(self._pending))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        ends = self._sidecar("ends", np.array(self._ends, dtype="<u4").tobytes())
        sums = self._sidecar("sums", b"".join(self._sums))
        learned = None if self._learned is None else self._spans(self._learned)
        name = f"{self._stem}.bin"
        (self._folder / f"{name}{PARTIAL}").rename(self._folder / name)
        tokens = ShardFile(
            name=name,
            bytes=self.tokens * TOKEN_TYPES[self._type.name],
            sha256=self._whole.hexdigest(),
        )
        return ShardRecord(tokens=tokens, ends=ends, sums=sums, learned=learned)

    def _spans(self, learned: list[npt.NDArray[np.int64]]) -> ShardFile:
        pairs = np.concatenate(learned).reshape(-1)
        return self._sidecar("learned", np.array([len(pairs) // 2, *pairs], dtype="<u4").tobytes())

    def _write(self, block: bytes) -> None:
        self._file.write(block)
        self._whole.update(block)
        self._sums.append(hashlib.sha256(block).digest())

    def _sidecar(self, suffix: str, content: bytes) -> ShardFile:
        name = f"{self._stem}.{suffix}"
        write_durably(self._folder / name, content)
        return ShardFile(name=name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def write_durably(path: Path, content: bytes) -> None:
    """Replace a small file atomically and durably."""
    partial = path.with_name(path.name + PARTIAL)
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
