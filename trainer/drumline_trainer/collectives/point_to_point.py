"""Messages between two ranks of a group, from which the collectives here are built."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup


def exchange(
    group: ProcessGroup, *, send: torch.Tensor, to: int, receive: torch.Tensor, source: int
) -> None:
    """Send and receive at once; in a ring, blocking sends would deadlock.

    Args:
        group: `to` and `source` are ranks in it.
        send: not written to.
        to: the rank that receives `send`, in a tensor of the same shape.
        receive: overwritten; if empty, nothing is received.
        source: the rank that sends it.
    """
    messages: list[dist.P2POp] = []
    if send.numel():
        messages.append(dist.P2POp(dist.isend, send, group=group, group_peer=to))
    if receive.numel():
        messages.append(dist.P2POp(dist.irecv, receive, group=group, group_peer=source))
    if messages:
        for work in dist.batch_isend_irecv(messages):
            work.wait()
