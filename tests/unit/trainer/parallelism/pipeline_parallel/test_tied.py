"""Both ends of a pipeline count as copies of one parameter."""

from __future__ import annotations

from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from drumline_contract.config import Schedule
from drumline_contract.layout import Layout
from drumline_trainer.parallelism.pipeline_parallel.tied import (
    TiedGroup,
    check_tied_weights,
    sum_tied_gradients,
    tied_copies,
)
from drumline_trainer.sharding.boxes import Box, tiles
from drumline_trainer.sharding.slices import TensorSlice

PIPELINE = Layout(pipeline=2)
V_SHAPE = Layout(pipeline=2, schedule=Schedule.ZBV, stages_per_rank=2)


def part(name: str, *, rows: int = 6, copies: int = 1, copy: int = 0) -> TensorSlice:
    return TensorSlice(
        name=name,
        shape=(6, 2),
        box=Box(offsets=(0, 0), shape=(rows, 2)),
        tensor=torch.zeros(rows, 2),
        copies=copies,
        copy=copy,
    )


def held(slices: tuple[TensorSlice, ...]) -> list[tuple[str, int, int]]:
    return [(s.name, s.copies, s.copy) for s in slices]


def test_copies_of_the_last_stage_and_of_the_first_take_turns() -> None:
    mine = [part("embedding.weight", copies=2, copy=1), part("layers.0.w", copies=2, copy=1)]
    first = tied_copies(mine, layout=PIPELINE, pipeline=0)
    last = tied_copies(mine, layout=PIPELINE, pipeline=1)
    assert held(first) == [("embedding.weight", 4, 2), ("layers.0.w", 2, 1)]
    assert held(last) == [("embedding.weight", 4, 3), ("layers.0.w", 2, 1)]


def test_a_rank_with_both_ends_has_both_copies() -> None:
    mine = [part("embedding.weight"), part("layers.0.w"), part("embedding.weight")]
    both = tied_copies(mine, layout=V_SHAPE, pipeline=0)
    assert held(both) == [
        ("embedding.weight", 2, 0),
        ("layers.0.w", 1, 0),
        ("embedding.weight", 2, 1),
    ]


def test_without_a_pipeline_the_embedding_is_one_parameter() -> None:
    mine = (part("embedding.weight"),)
    assert tied_copies(mine, layout=Layout(), pipeline=0) == mine


def test_the_ends_write_every_element_to_a_checkpoint_once() -> None:
    mine = [part("embedding.weight")]
    ends = [tied_copies(mine, layout=PIPELINE, pipeline=place)[0] for place in (0, 1)]
    assert tiles((6, 2), [end.own_part().box for end in ends if end.own_part().box.elements])


def test_ends_on_one_rank_meet_there_and_nothing_else_is_touched() -> None:
    slices = [part("embedding.weight"), part("layers.0.w"), part("embedding.weight")]
    gradients: list[Tensor] = [torch.full((6, 2), value) for value in (1.0, 10.0, 100.0)]
    sum_tied_gradients(slices, gradients, tied=None)
    assert [g.unique().tolist() for g in gradients] == [[101.0], [10.0], [101.0]]


def test_a_rank_between_the_ends_has_nothing_to_sum() -> None:
    gradients = [torch.ones(6, 2)]
    sum_tied_gradients([part("layers.0.w")], gradients, tied=None)
    assert gradients[0].unique().tolist() == [1.0]


def test_ends_that_hold_different_parts_are_refused() -> None:
    slices = [part("embedding.weight"), part("embedding.weight", rows=3)]
    with pytest.raises(ValueError, match="hold different parts"):
        check_tied_weights(slices, tied=None)
    check_tied_weights(slices[:1], tied=None)


def test_groups_get_tensors_of_their_device_where_weights_lie_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class SentError(Exception):
        pass

    def sent(*tensors: Tensor | list[Tensor], **_: object) -> None:
        raise SentError(str(cast("Tensor", tensors[-1]).device))

    monkeypatch.setattr(dist, "all_reduce", sent)
    monkeypatch.setattr(dist, "all_gather", sent)
    ends = TiedGroup(group=cast("ProcessGroup", None), device=torch.device("meta"))
    slices = [part("embedding.weight")]
    with pytest.raises(SentError, match="meta"):
        sum_tied_gradients(slices, [torch.ones(6, 2)], tied=ends)
    with pytest.raises(SentError, match="meta"):
        check_tied_weights(slices, tied=ends)
