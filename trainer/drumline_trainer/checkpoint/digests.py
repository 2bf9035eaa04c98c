"""Digests of shard files: one wrong bit or byte anywhere gives another digest.

XXH3 with 128 bits runs at the speed of memory, where SHA-256 takes longer than writing does. It is
not a cryptographic hash and does not have to be: bit rot, a torn write, a truncated or swapped file
are accidents, which it misses with a probability of 2^-128. It does not protect from deliberate
changes: an attacker could find other bytes with the same digest, and could as well write a new
manifest. Everything with write access to the folder must be trusted.

The manifest, by whose digest the operator knows a checkpoint, uses SHA-256; so do the files of
manifests that were written with it.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Final, Protocol

import xxhash


class Algorithm(StrEnum):
    """Supported algorithms, by their names in manifests."""

    XXH3_128 = "xxh3_128"
    SHA256 = "sha256"


HEX_DIGITS: Final = {Algorithm.XXH3_128: 32, Algorithm.SHA256: 64}


class Hasher(Protocol):
    """Computes one digest."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Append these bytes."""
        ...

    def hexdigest(self) -> str:
        """Return the digest of all bytes so far."""
        ...


def hasher(algorithm: Algorithm = Algorithm.XXH3_128) -> Hasher:
    """Make an empty hasher."""
    return xxhash.xxh3_128() if algorithm is Algorithm.XXH3_128 else hashlib.sha256()
