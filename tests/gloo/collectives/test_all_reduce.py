"""Our all-reduces give what torch's gives, for any number of ranks and any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from drumline_trainer.collectives.measurements import nodes_of
from drumline_trainer.collectives.ring import ring_all_reduce
from drumline_trainer.collectives.tree import tree_all_reduce
from drumline_trainer.collectives.two_level import two_level_all_reduce
from drumline_trainer.rank_protocol.placement import Placement
from drumline_trainer.recovery.rendezvous import join
from tests.gloo.gang import GangStarter

SHAPES = ((0,), (1,), (5,), (7, 3), (64, 33))


Ways = dict[str, Callable[[torch.Tensor], None]]
"""All-reduces in place, by name."""


def group_of(sets: Sequence[Sequence[int]], rank: int) -> ProcessGroup | None:
    """Made by every rank; None for a set of one, as in a `World`, and where the rank is in none."""
    made = [(ranks, dist.new_group(list(ranks))) for ranks in sets]
    mine = next((group for ranks, group in made if rank in ranks and len(ranks) > 1), None)
    return mine if isinstance(mine, ProcessGroup) else None


def ways_of(ranks: tuple[int, ...], rank: int) -> Ways:
    """All of ours, over the first ranks of the world."""
    whole = group_of([ranks], rank)
    ways: Ways = {
        "ring": lambda tensor: ring_all_reduce(tensor, whole),
        "tree": lambda tensor: tree_all_reduce(tensor, whole),
        "one node": lambda tensor: two_level_all_reduce(tensor, inside=whole, between=None),
        "nodes of one": lambda tensor: two_level_all_reduce(tensor, inside=None, between=whole),
    }
    nodes = nodes_of(ranks, per_node=len(ranks)) if len(ranks) > 1 else ()
    if nodes:
        inside = group_of(nodes, rank)
        between = group_of(list(zip(*nodes, strict=True)), rank)
        ways["two levels"] = partial(two_level_all_reduce, inside=inside, between=between)
    return ways


def reduce_all_ways(placement: Placement, pipe: Connection) -> None:
    """Send by number of ranks: which ways differ from torch's sum, and how many were compared."""
    torch.set_num_threads(1)
    join(placement, device=torch.device("cpu"))
    results: dict[int, tuple[list[str], int]] = {}
    for size in range(1, placement.world_size + 1):
        ranks = tuple(range(size))
        group, ways = dist.new_group(list(ranks)), ways_of(ranks, placement.rank)
        if placement.rank < size:
            assert isinstance(group, ProcessGroup)
            results[size] = differences(ways, group)
    pipe.send(results)
    dist.destroy_process_group()


def differences(ways: Ways, group: ProcessGroup) -> tuple[list[str], int]:
    wrong: list[str] = []
    compared = 0
    for dtype in (torch.int64, torch.float32):
        for shape in SHAPES:
            random = torch.Generator().manual_seed(group.rank())
            mine = (torch.rand(shape, generator=random) * 100).to(dtype)
            expected = mine.clone()
            dist.all_reduce(expected, group=group)
            for name, way in ways.items():
                result = mine.clone()
                way(result)
                compared += 1
                try:  # integers exactly, floats to rounding
                    torch.testing.assert_close(result, expected)
                except AssertionError as error:
                    wrong.append(f"{name} of {dtype} {shape}: {error}")
    return wrong, compared


def test_ours_equal_torch_s_for_one_to_eight_ranks(gangs: GangStarter) -> None:
    ways = {size: 4 + (size in (4, 6, 8)) for size in range(1, 9)}  # those have two real levels
    expected = {size: ([], 2 * len(SHAPES) * number) for size, number in ways.items()}
    for rank, results in enumerate(gangs.run(reduce_all_ways, world_size=8)):
        assert results == {size: each for size, each in expected.items() if size > rank}
