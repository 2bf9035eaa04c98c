"""The operations to measure: each collective on tensors of one size, torch's and ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from drumline_trainer.collectives.measurements import Collective
from drumline_trainer.collectives.point_to_point import exchange
from drumline_trainer.collectives.ring import ring_all_reduce
from drumline_trainer.collectives.tree import tree_all_reduce
from drumline_trainer.collectives.two_level import two_level_all_reduce

_ITEM = torch.float32.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGroups:
    """This rank's groups along the axis that is measured."""

    whole: ProcessGroup
    inside: ProcessGroup | None = None
    """With `between`: the axis cut by nodes. Both None where the axis has one level only."""
    between: ProcessGroup | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A call to measure."""

    collective: Collective
    by: str
    run: Callable[[], object]


def even_size(size: int, ranks: int) -> int:
    """The next number of bytes that is a whole number of fp32 values for every rank."""
    step = _ITEM * ranks
    return -(-size // step) * step


def operations(size: int, *, groups: MeasuredGroups, device: torch.device) -> tuple[Operation, ...]:
    """All operations on `size` bytes (`even_size`): first torch's, then our all-reduces.

    They share two tensors of zeros, which stay zeros however often they are summed.
    """
    group, ranks, rank = groups.whole, groups.whole.size(), groups.whole.rank()
    whole = torch.zeros(size // _ITEM, device=device)
    other = torch.zeros_like(whole)
    part = torch.zeros(len(whole) // ranks, device=device)

    def shift() -> None:
        exchange(group, send=whole, to=(rank + 1) % ranks, receive=other, source=(rank - 1) % ranks)

    torchs: dict[Collective, Callable[[], object]] = {
        Collective.BROADCAST: lambda: dist.broadcast(whole, group=group, group_src=0),
        Collective.ALL_REDUCE: lambda: dist.all_reduce(whole, group=group),
        Collective.ALL_GATHER: lambda: dist.all_gather_into_tensor(whole, part, group=group),
        Collective.REDUCE_SCATTER: lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        Collective.ALL_TO_ALL: lambda: dist.all_to_all_single(other, whole, group=group),
        Collective.P2P: shift,
    }
    ours: dict[str, Callable[[], object]] = {
        "ring": lambda: ring_all_reduce(whole, group),
        "tree": lambda: tree_all_reduce(whole, group),
    }
    if groups.inside is not None:
        ours["two-level"] = lambda: two_level_all_reduce(
            whole, inside=groups.inside, between=groups.between
        )
    return (
        *(Operation(collective=name, by="torch", run=run) for name, run in torchs.items()),
        *(Operation(collective=Collective.ALL_REDUCE, by=by, run=run) for by, run in ours.items()),
    )
