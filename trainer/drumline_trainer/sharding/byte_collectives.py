"""Small messages between all ranks as bytes: JSON in, JSON out, never pickled objects.

Collective: every rank of the default process group must make the same calls in the same order.

Every payload travels with its checksum. When NCCL's communicators are aborted, waits return without
an error, and what has not arrived is zero or whatever was in memory: without it, a peer that never
answered would have accepted.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
import torch.distributed as dist

_CHECKSUM_BYTES = 4
_CHECKSUM_START = 1
"""Start of the checksum. It makes that of an empty message differ from zeroed memory."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A rank, or with `agree` every rank, can continue."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A rank cannot continue."""

    reason: str
    """Never empty."""


Vote = Accepted | Rejected


def gather_bytes(payload: bytes, *, device: torch.device) -> list[bytes]:
    """Gather every rank's payload, by rank, on every rank; padded to the longest on the wire.

    Raises:
        ConnectionError: a payload has not arrived whole.
    """
    payload = framed(payload)
    # Phase 1: lengths. A sum of one-hot entries is an all-gather that every backend supports.
    lengths = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=device)
    lengths[dist.get_rank()] = len(payload)
    dist.all_reduce(lengths)
    longest = max(1, int(lengths.max()))
    # Phase 2: pad to the longest, because all_gather needs equal shapes.
    mine = torch.zeros(longest, dtype=torch.uint8, device=device)
    mine[: len(payload)] = _as_tensor(payload).to(device)
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    # Phase 3: cut the padding and check each payload.
    sizes: list[int] = lengths.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - torch says only list
    return [unframed(_as_bytes(row[:size])) for row, size in zip(rows, sizes, strict=True)]


def broadcast_bytes(payload: bytes, *, device: torch.device) -> bytes:
    """Return rank 0's payload on every rank; what the others pass is ignored.

    Raises:
        ConnectionError: it has not arrived whole.
    """
    payload = framed(payload)
    length = torch.tensor([len(payload)], dtype=torch.int64, device=device)
    # The receivers need the length to allocate the buffer.
    dist.broadcast(length, src=0)
    if dist.get_rank() == 0:
        message = _as_tensor(payload).to(device)
    else:
        message = torch.empty(int(length), dtype=torch.uint8, device=device)
    dist.broadcast(message, src=0)
    return unframed(_as_bytes(message))


def agree(vote: Vote, *, device: torch.device) -> Vote:
    """Return `Accepted` if every rank accepts, otherwise the lowest rank's rejection.

    Collective.
    """
    reason = vote.reason if isinstance(vote, Rejected) else ""
    reasons = gather_bytes(reason.encode(), device=device)
    # The lowest rank's reason: all ranks report the same one.
    return next((Rejected(answer.decode()) for answer in reasons if answer), Accepted())


def framed(payload: bytes) -> bytes:
    """Prepend a checksum to the payload."""
    return zlib.crc32(payload, _CHECKSUM_START).to_bytes(_CHECKSUM_BYTES) + payload


def unframed(message: bytes) -> bytes:
    """Check and remove the checksum of a message.

    Raises:
        ConnectionError: the message differs from the one that was sent.
    """
    payload = message[_CHECKSUM_BYTES:]
    # Framing the payload again compares checksum and length in one step.
    if message != framed(payload):
        raise ConnectionError(
            "a message between ranks has not arrived whole: its collective was aborted"
        )
    return payload


def _as_tensor(payload: bytes) -> torch.Tensor:
    if not payload:
        return torch.empty(0, dtype=torch.uint8)
    # frombuffer shares memory and warns on read-only bytes, hence the copy.
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8)


def _as_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()
