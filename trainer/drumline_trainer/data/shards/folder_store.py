"""Shards in a folder or on a claim, memory-mapped: the operating system's page cache is the cache.

Shards are written once. One that is cut short while it is mapped ends the process (SIGBUS), as with
every memory-mapped file.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from drumline_trainer.config import ConfigError
from drumline_trainer.data.shards.text import ShardBlock

_OPEN_FILES = 64
"""Each mapped file holds a descriptor."""


class FolderShardStore:
    """A `ShardStore` of local files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._maps: OrderedDict[str, memoryview] = OrderedDict()
        self._verified: dict[str, bytearray] = {}
        """One byte for each block of a file: whether it was compared with its digest."""

    @property
    def location(self) -> str:
        """The folder."""
        return str(self._folder)

    def read_file(self, name: str, *, limit: int) -> bytes:
        """A small file."""
        path = self._folder / name
        try:
            with path.open("rb") as file:
                content = file.read(limit + 1)
        except OSError as error:
            raise ConfigError(f"data.source: {path}: {error.strerror}") from error
        if len(content) > limit:
            raise ConfigError(f"data.source: {path} is longer than {limit} bytes")
        return content

    def sizes(self) -> dict[str, int]:
        """Bytes of each file there is."""
        return {path.name: path.stat().st_size for path in self._folder.iterdir()}

    def block(self, block: ShardBlock) -> memoryview:
        """The content, without a copy; verified when it is read for the first time."""
        content = self._map(block.file)[block.start : block.stop]
        verified = self._verified.setdefault(block.file, bytearray())
        verified.extend(bytes(max(0, block.number + 1 - len(verified))))
        if not verified[block.number]:
            block.check(content, where=self.location)
            verified[block.number] = 1
        return content

    def prefetch(self, blocks: Iterable[ShardBlock]) -> None:
        """Nothing: the operating system reads ahead."""

    def close(self) -> None:
        """Let go of the maps; what was read from them stays valid."""
        self._maps.clear()

    def _map(self, name: str) -> memoryview:
        if name in self._maps:
            self._maps.move_to_end(name)
            return self._maps[name]
        try:
            with (self._folder / name).open("rb") as file:
                mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise ConfigError(f"data.source: {self._folder / name}: {error}") from error
        self._maps[name] = mapped
        if len(self._maps) > _OPEN_FILES:
            self._maps.popitem(last=False)
        return mapped
