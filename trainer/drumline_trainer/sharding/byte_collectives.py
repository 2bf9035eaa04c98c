"""Small messages between all ranks as bytes: JSON in, JSON out, never pickled objects.

Collective: every rank of the default process group must make the same calls in the same order.
"""

from __future__ import annotations

import torch
import torch.distributed as dist


def gather_bytes(payload: bytes, *, device: torch.device) -> list[bytes]:
    """Every rank's payload, by rank, on every rank. Padded to the longest on the wire."""
    lengths = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=device)
    lengths[dist.get_rank()] = len(payload)
    dist.all_reduce(lengths)
    longest = max(1, int(lengths.max()))
    mine = torch.zeros(longest, dtype=torch.uint8, device=device)
    mine[: len(payload)] = _as_tensor(payload).to(device)
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    return [_as_bytes(row[:length]) for row, length in zip(rows, lengths.tolist(), strict=True)]


def broadcast_bytes(payload: bytes, *, device: torch.device) -> bytes:
    """Rank 0's payload on every rank; what the others pass is ignored."""
    length = torch.tensor([len(payload)], dtype=torch.int64, device=device)
    dist.broadcast(length, src=0)
    if dist.get_rank() == 0:
        message = _as_tensor(payload).to(device)
    else:
        message = torch.empty(int(length), dtype=torch.uint8, device=device)
    dist.broadcast(message, src=0)
    return _as_bytes(message)


def agree(reason: str, *, device: torch.device) -> str:
    """Every rank's reason not to go on, empty for none; the first of them is everyone's."""
    answers = gather_bytes(reason.encode(), device=device)
    return next((answer.decode() for answer in answers if answer), "")


def _as_tensor(payload: bytes) -> torch.Tensor:
    if not payload:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8)


def _as_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()
