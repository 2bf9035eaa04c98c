"""Where ranks stand, and which sets they form."""

from __future__ import annotations

import itertools

from drumline_contract.config import DataParallel, Schedule
from drumline_contract.layout import Axis, Layout
from drumline_contract.layout_validation import validated_layout
from tests.unit.trainer.layout_matrix import config, matrix


def test_each_rank_is_in_one_set_of_each_axis() -> None:
    for layout in {Layout.of(trainer.parallelism, world_size=ranks) for trainer, ranks in matrix()}:
        for axis in Axis:
            everyone = sorted(itertools.chain.from_iterable(layout.groups(axis)))
            assert everyone == list(range(layout.world_size)), (layout, axis)
            assert len({len(group) for group in layout.groups(axis)}) == 1


def test_tensor_neighbours_are_next_to_each_other_and_stages_far_apart() -> None:
    layout = Layout(replicate=2, shard=2, context=2, tensor=2, pipeline=2)

    assert layout.group_of(Axis.TENSOR, 5) == (4, 5)
    assert layout.group_of(Axis.CONTEXT, 5) == (5, 7)
    assert layout.group_of(Axis.SHARD, 5) == (1, 5)
    assert layout.group_of(Axis.REPLICATE, 5) == (5, 13)
    assert layout.group_of(Axis.PIPELINE, 5) == (5, 21)
    assert layout.group_of(Axis.FSDP, 5) == (1, 3, 5, 7)
    assert layout.group_of(Axis.DATA, 5) == (1, 3, 5, 7, 9, 11, 13, 15)


def test_experts_are_shared_by_the_innermost_ranks_of_a_copy() -> None:
    layout = Layout(replicate=2, shard=4, expert=2, tensor=2)

    assert layout.group_of(Axis.EXPERT, 0) == (0, 2)
    assert layout.group_of(Axis.EXPERT_FSDP, 0) == (0, 4)
    assert layout.group_of(Axis.EXPERT_DATA, 0) == (0, 4, 8, 12)


def test_without_shards_experts_are_shared_by_the_ranks_that_replicate() -> None:
    trainer = config(experts=4, parallelism={"data_parallel": "ddp", "expert": 2})
    layout = validated_layout(trainer, world_size=4)

    assert layout.groups(Axis.EXPERT) == ((0, 1), (2, 3))
    assert layout.groups(Axis.EXPERT_DATA) == ((0, 2), (1, 3))


def test_a_v_shaped_pipeline_ends_where_it_begins() -> None:
    plain = Layout.of(config(parallelism={"pipeline": 2}).parallelism, world_size=2)
    loops = config(parallelism={"pipeline": 2, "schedule": "interleaved"})
    folded = config(parallelism={"pipeline": 2, "schedule": "zbv"})

    assert [plain.stages_of(place) for place in range(2)] == [(0,), (1,)]
    looping = Layout.of(loops.parallelism, world_size=2)
    assert [looping.stages_of(place) for place in range(2)] == [(0, 2), (1, 3)]
    v_shaped = Layout.of(folded.parallelism, world_size=2)
    assert [v_shaped.stages_of(place) for place in range(2)] == [(0, 3), (1, 2)]


def test_all_ranks_that_are_left_share_samples() -> None:
    layout = validated_layout(config(parallelism={"tensor": 2, "pipeline": 2}), world_size=16)
    assert (layout.shard, layout.replicate, layout.batch_ranks) == (4, 1, 4)
    copies = validated_layout(config(parallelism={"data_parallel": "zero1"}), world_size=16)
    assert (copies.shard, copies.replicate, copies.batch_ranks) == (1, 16, 16)


def test_it_is_printed_as_people_write_it() -> None:
    assert str(Layout()) == "one rank"
    assert str(Layout(shard=2, tensor=2, pipeline=2)) == "PP2 (1f1b) · FSDP2 · TP2"
    assert str(Layout(replicate=2, shard=4, context=2, expert=2)) == "HSDP2x4 · CP2 · EP2"
    alone = Layout(data_parallel=DataParallel.ZERO1, context=2)
    assert str(alone) == "ZERO1 · CP2"  # whose state only context ranks share
    assert str(Layout(context=2)) == "FSDP · CP2"


def test_neighbours_on_the_replicate_axis_form_blocks() -> None:
    layout = Layout(replicate=4, shard=2, tensor=2)
    first, second = layout.replica_blocks(2)
    assert [{layout.coordinate(rank).replicate for rank in block} for block in (first, second)] == [
        {0, 1},
        {2, 3},
    ]
    assert sorted((*first, *second)) == list(range(16))


def test_weights_stay_gathered_for_split_backward_passes_of_a_pipeline_only() -> None:
    split, whole = Schedule.ZERO_BUBBLE, Schedule.ONE_F_ONE_B
    assert Layout(pipeline=2, schedule=split).keeps_gathered
    assert not Layout(pipeline=2, schedule=whole).keeps_gathered
    assert not Layout(schedule=split).keeps_gathered
