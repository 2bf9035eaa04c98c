"""Cut documents that are nested too deep for a recursive decoder.

The API server stores objects up to 10,000 levels deep if a schema leaves fields open, and any JSON
decoder recurses. Such a document is rare and intentional. It is cut without recursion, below all
fields that Drumline reads, so that the object still has its name.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

KEPT_LEVELS: Final = 64
_CHUNK_BYTES: Final = 1 << 20
_Bytes = npt.NDArray[np.uint8]
_DEEPER: Final = np.zeros(256, np.int8)
"""Change of the depth by a byte outside of strings."""
_DEEPER[[ord("{"), ord("[")]], _DEEPER[[ord("}"), ord("]")]] = 1, -1


def flattened(raw: bytes, *, levels: int = KEPT_LEVELS) -> bytes:
    """Return a JSON document with 0 for every object and list nested deeper than `levels`.

    O(bytes), one mebibyte at a time. Invalid JSON stays invalid.

        levels=1: {"a": {"b": [1]}, "c": 2} -> {"a": 0, "c": 2}
    """
    # An escaped quote ends no string: cover escapes, the escaped backslash first.
    covered = raw.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    kept: list[bytes] = []
    depth, in_string = 0, 0
    for start in range(0, len(raw), _CHUNK_BYTES):
        seen = np.frombuffer(covered, np.uint8, _chunk(raw, start), start)
        strings = (np.cumsum(seen == ord('"'), dtype=np.int32) + in_string) & 1
        change = np.where(strings == 0, _DEEPER[seen], 0)
        after = depth + np.cumsum(change, dtype=np.int32)
        level = np.where(change < 0, after + 1, after)  # a bracket is of what it opens or closes
        cut = (change > 0) & (level == levels + 1)
        piece: _Bytes = np.frombuffer(raw, np.uint8, _chunk(raw, start), start).copy()
        piece[cut] = ord("0")
        kept.append(piece[(level <= levels) | cut].tobytes())
        depth, in_string = int(after[-1]), int(strings[-1])
    return b"".join(kept)


def _chunk(raw: bytes, start: int) -> int:
    return min(_CHUNK_BYTES, len(raw) - start)
