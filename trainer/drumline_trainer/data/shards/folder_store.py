"""Shards in a folder, memory-mapped: the operating system's page cache is the cache.

Shards are written once. As with every memory-mapped file, truncating a shard while it is mapped
ends the process (SIGBUS).
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from drumline_contract.config import ConfigError
from drumline_contract.regular_files import open_regular
from drumline_trainer.data.shards.text import ShardBlock

_OPEN_FILES = 64
"""Each mapped file holds a file descriptor."""


class FolderShardStore:
    """A `ShardStore` of local files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._maps: OrderedDict[str, memoryview] = OrderedDict()
        self._verified: dict[str, bytearray] = {}
        """One byte for each block of a file: whether its digest was verified."""

    @property
    def location(self) -> str:
        """The folder."""
        return str(self._folder)

    def read_file(self, name: str, *, limit: int) -> bytes:
        """Read a small file.

        Raises:
            ConfigError: it cannot be read, or is longer than `limit` bytes.
        """
        path = self._folder / name
        try:
            with open_regular(path) as file:
                content = file.read(limit + 1)
        except OSError as error:
            raise ConfigError(f"data.source: {path}: {error.strerror}") from error
        if len(content) > limit:
            raise ConfigError(f"data.source: {path} is longer than {limit} bytes")
        return content

    def sizes(self) -> dict[str, int]:
        """Return the size of each file in bytes, by name."""
        return {path.name: path.stat().st_size for path in self._folder.iterdir()}

    def block(self, block: ShardBlock) -> memoryview:
        """Return the content without a copy. It is verified at the first read.

        Raises:
            ShardMismatchError: the content differs from the index.
        """
        content = self._map(block.file)[block.start : block.stop]
        verified = self._verified.setdefault(block.file, bytearray())
        verified.extend(bytes(max(0, block.number + 1 - len(verified))))
        if not verified[block.number]:
            block.check(content, where=self.location)
            verified[block.number] = 1
        return content

    def prefetch(self, blocks: Iterable[ShardBlock]) -> None:
        """Do nothing: the operating system reads ahead."""

    def close(self) -> None:
        """Close the maps; blocks that were read from them stay valid."""
        self._maps.clear()

    def _map(self, name: str) -> memoryview:
        if name in self._maps:
            self._maps.move_to_end(name)
            return self._maps[name]
        try:
            with open_regular(self._folder / name) as file:
                mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise ConfigError(f"data.source: {self._folder / name}: {error}") from error
        self._maps[name] = mapped
        if len(self._maps) > _OPEN_FILES:
            self._maps.popitem(last=False)
        return mapped
