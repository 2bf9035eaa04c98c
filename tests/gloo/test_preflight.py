"""Ranks that differ fail at start, all with one sentence; those who are alone do not wait long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection

import pytest
import torch.distributed as dist
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import ConfigError
from drumline_trainer.preflight import agree
from tests.gloo.gang import GangStarter

pytestmark = pytest.mark.extended(keep=1)

SHORT, LONG = timedelta(seconds=8), timedelta(minutes=5)
ALIKE = {"torch": "2.15.0", "configuration": "12ab"}


def store_of(placement: Placement) -> TCPStore:
    """A client of the gang's store."""
    return TCPStore("127.0.0.1", placement.store_port, is_master=False, wait_for_workers=False)


def compare(
    placement: Placement,
    pipe: Connection,
    odd: Mapping[int, dict[str, str]],
    came: int,
    groups: Sequence[Mapping[str, Sequence[int]]] = ({}, {}, {}, {}),
) -> None:
    """The first `came` ranks agree; send what it report."""
    if placement.rank >= came:
        pipe.send("")
        return
    store = store_of(placement)
    if store.add("started", 1) == came:  # then nobody's patience ends before the others started
        store.set("all started", "")
    store.wait(["all started"])
    facts = ALIKE | odd.get(placement.rank, {})
    try:
        agree(
            store,
            rank=placement.rank,
            world_size=placement.world_size,
            facts=facts,
            groups=groups[placement.rank],
            timeout=LONG if came == placement.world_size else SHORT,
        )
    except (ConfigError, dist.DistStoreError) as error:
        pipe.send(f"{type(error).__name__}: {error}")
    else:
        pipe.send("agreed")


def test_ranks_that_are_alike_go_on(gangs: GangStarter) -> None:
    assert gangs.run(compare, {}, 3, world_size=3) == ["agreed"] * 3


@pytest.mark.parametrize(
    ("odd", "sentence"),
    [
        ({2: {"NCCL_ALGO": "Ring"}}, "rank 2 has NCCL_ALGO=Ring and rank 0 has NCCL_ALGO unset"),
        ({0: {"torch": "2.11.0"}}, "rank 0 has torch=2.11.0 and rank 1 has torch=2.15.0"),
    ],
)
def test_a_difference_fails_every_rank_with_one_sentence(
    odd: dict[int, dict[str, str]], sentence: str, gangs: GangStarter
) -> None:
    completed = gangs.run(compare, odd, 3, world_size=3)
    assert completed == [f"ConfigError: {sentence}; set it the same on all ranks"] * 3


def test_who_does_not_come_is_named(gangs: GangStarter) -> None:
    completed = gangs.run(compare, {}, 2, world_size=4)
    assert completed[:2] == [
        f"DistStoreError: rank {rank} waited in vain for rank 2, 3 of 4" for rank in (0, 1)
    ]


def test_a_difference_is_told_even_where_a_rank_is_missing(gangs: GangStarter) -> None:
    completed = gangs.run(compare, {1: {"torch": "2.11.0"}}, 2, world_size=3)
    sentence = "rank 1 has torch=2.11.0 and rank 0 has torch=2.15.0"
    assert {each.partition(";")[0] for each in completed[:2]} <= {f"ConfigError: {sentence}"}


def test_wrong_groups_fail_every_rank(gangs: GangStarter) -> None:
    right = [{"tp": [0, 1]}, {"tp": [0, 1]}, {"dp": [2]}]
    assert gangs.run(compare, {}, 3, right, world_size=3) == ["agreed"] * 3
    wrong = [{"tp": [0, 1]}, {"tp": [1, 2]}, {"tp": [1, 2]}]
    sentence = "rank 0 has the ranks 0, 1 in its tp group and rank 1 has 1, 2"
    assert set(gangs.run(compare, {}, 3, wrong, world_size=3)) == {f"ConfigError: {sentence}"}
