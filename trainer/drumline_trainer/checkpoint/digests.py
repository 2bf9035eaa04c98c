"""Digests of shard files: one wrong bit or byte anywhere gives another digest.

XXH3 with 128 bits runs at the speed of memory, where SHA-256 takes longer than writing does. It is
no cryptographic hash, and need not be: storage that rots, a write that was torn, a file cut short
or mixed up with another knows nothing of the hash, so it is missed with a chance of 2^-128. What it
does not protect from is somebody who changes files on purpose: he can find other bytes with the
same digest, and could as well write a new manifest. Who may write the folder must be trusted.

The manifest, by whose digest the operator knows a checkpoint, keeps SHA-256; so do the files of
manifests that were written with it.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Final, Protocol

import xxhash


class Algorithm(StrEnum):
    """Those that are known, by their names in manifests."""

    XXH3_128 = "xxh3_128"
    SHA256 = "sha256"


HEX_DIGITS: Final = {Algorithm.XXH3_128: 32, Algorithm.SHA256: 64}


class Hasher(Protocol):
    """Works out one digest."""

    def update(self, data: bytes | memoryview, /) -> None:
        """These bytes come next."""
        ...

    def hexdigest(self) -> str:
        """Of all bytes so far."""
        ...


def hasher(algorithm: Algorithm = Algorithm.XXH3_128) -> Hasher:
    """A new one, without bytes."""
    return xxhash.xxh3_128() if algorithm is Algorithm.XXH3_128 else hashlib.sha256()
