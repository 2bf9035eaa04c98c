"""Between two ranks of a group: all that the collectives here are made of."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup


def exchange(
    group: ProcessGroup, *, send: torch.Tensor, to: int, receive: torch.Tensor, source: int
) -> None:
    """Send and receive at once, or every rank of a ring would wait for the next one to listen.

    Args:
        group: `to` and `source` are places in it.
        send: not written to.
        to: who gets `send`; there it has the shape of what that rank receives.
        receive: overwritten; without elements nothing is awaited.
        source: who sends it.
    """
    messages: list[dist.P2POp] = []
    if send.numel():
        messages.append(dist.P2POp(dist.isend, send, group=group, group_peer=to))
    if receive.numel():
        messages.append(dist.P2POp(dist.irecv, receive, group=group, group_peer=source))
    if messages:
        for work in dist.batch_isend_irecv(messages):
            work.wait()
