"""The layout: where ranks stand, which sets they form, what is refused and why."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from drumline_trainer.config import ConfigError, TrainerConfig, merge
from drumline_trainer.layout import (
    Axis,
    Layout,
    Reason,
    checked_layout,
    micro_batches,
    objections,
)

MODEL = {"layers": 4, "hidden_size": 32, "ffn_size": 64, "heads": 4, "kv_heads": 2}
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "zbv", "dualpipev")
DATA_PARALLEL = (
    {"data_parallel": "ddp"},
    {"data_parallel": "zero1"},
    {"data_parallel": "zero2"},
    {"data_parallel": "fsdp"},
    {"data_parallel": "fsdp", "replicate": 2},
)


def config(*, experts: int = 0, parallelism: dict[str, Any], **changes: Any) -> TrainerConfig:
    raw = {
        "model": {**MODEL, "experts": experts},
        "data": {"sequence_length": 16},
        "global_batch_size": 32,
        "parallelism": parallelism,
    }
    return TrainerConfig.from_dict(merge(raw, changes))


def matrix() -> Iterator[tuple[TrainerConfig, int]]:
    """The layouts that a user may combine, with the ranks they need; 4 or 16 micro-batches."""
    pipelines: list[dict[str, Any]] = [{}, *({"pipeline": 2, "schedule": s} for s in SCHEDULES)]
    for data, tensor, pipe, context, expert, accumulation in itertools.product(
        DATA_PARALLEL, (1, 2), pipelines, (1, 2), (1, 2), (1, 4)
    ):
        parallelism = {**data, **pipe, "tensor": tensor, "context": context, "expert": expert}
        ranks = 4 * tensor * context * pipe.get("pipeline", 1)
        at_once = 4 if pipe else 1
        yield (
            config(
                experts=4 if expert > 1 else 0,
                parallelism=parallelism,
                global_batch_size=4 * at_once * accumulation,
                micro_batch_size=1,
            ),
            ranks,
        )


def test_nearly_all_of_the_matrix_is_legal() -> None:
    verdicts = [objections(config, world_size=ranks) for config, ranks in matrix()]
    refused = Counter(found[0].reason for found in verdicts if found)
    legal = sum(not found for found in verdicts)

    assert legal / len(verdicts) >= 0.85, refused
    assert set(refused) == set(), refused


def test_each_rank_is_in_one_set_of_each_axis() -> None:
    for trainer, ranks in matrix():
        layout = checked_layout(trainer, world_size=ranks)
        for axis in Axis:
            everyone = sorted(itertools.chain.from_iterable(layout.groups(axis)))
            assert everyone == list(range(ranks)), (layout, axis)
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
    layout = checked_layout(trainer, world_size=4)

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
    layout = checked_layout(config(parallelism={"tensor": 2, "pipeline": 2}), world_size=16)
    assert (layout.shard, layout.replicate, layout.batch_ranks) == (4, 1, 4)
    copies = checked_layout(config(parallelism={"data_parallel": "zero1"}), world_size=16)
    assert (copies.shard, copies.replicate, copies.batch_ranks) == (1, 16, 16)


def test_it_is_printed_as_people_write_it() -> None:
    assert str(Layout()) == "one rank"
    assert str(Layout(shard=2, tensor=2, pipeline=2)) == "PP2 (1f1b) · FSDP2 · TP2"
    assert str(Layout(replicate=2, shard=4, context=2, expert=2)) == "HSDP2x4 · CP2 · EP2"


@pytest.mark.parametrize(
    ("reason", "words", "ranks", "changes"),
    [
        (Reason.WORLD_SIZE, "6 ranks", 6, {"parallelism": {"tensor": 4}}),
        (
            Reason.REPLICATE,
            "is for fsdp",
            4,
            {"parallelism": {"data_parallel": "ddp", "replicate": 2}},
        ),
        (Reason.HEADS, "model.kv_heads 2", 4, {"parallelism": {"tensor": 4}}),
        (
            Reason.FFN,
            "model.ffn_size 63",
            2,
            {"model": {"ffn_size": 63}, "parallelism": {"tensor": 2}},
        ),
        (
            Reason.SEQUENCE,
            "data.sequence_length: 18",
            2,
            {"data": {"sequence_length": 18}, "parallelism": {"context": 2}},
        ),
        (Reason.LAYERS, "8 stages", 8, {"parallelism": {"pipeline": 8}}),
        (
            Reason.STAGES_PER_RANK,
            "exactly 2, not 3",
            2,
            {"parallelism": {"pipeline": 2, "schedule": "zbv", "stages_per_rank": 3}},
        ),
        (
            Reason.MICRO_BATCHES,
            "at least 2",
            2,
            {"micro_batch_size": 32, "parallelism": {"pipeline": 2}},
        ),
        (
            Reason.UNEVEN_MICRO_BATCHES,
            "32 samples",
            2,
            {"micro_batch_size": 5, "parallelism": {"pipeline": 2}},
        ),
        (
            Reason.ROUNDS,
            "5 do not divide into 2",
            2,
            {
                "global_batch_size": 5,
                "micro_batch_size": 1,
                "parallelism": {"pipeline": 2, "schedule": "interleaved"},
            },
        ),
        (Reason.BATCH, "use a multiple of 3", 3, {}),
        (Reason.NO_EXPERTS, "no experts", 2, {"parallelism": {"expert": 2}}),
        (
            Reason.EXPERTS,
            "model.experts 3",
            2,
            {"model": {"experts": 3}, "parallelism": {"expert": 2}},
        ),
        (
            Reason.EXPERT_RANKS,
            "1 ranks",
            2,
            {"model": {"experts": 4}, "parallelism": {"tensor": 2, "expert": 2}},
        ),
    ],
    ids=lambda value: value.value if isinstance(value, Reason) else "",
)
def test_what_is_refused_names_the_field_and_the_figures(
    reason: Reason, words: str, ranks: int, changes: dict[str, Any]
) -> None:
    parallelism = changes.get("parallelism", {})
    others = {key: value for key, value in changes.items() if key != "parallelism"}
    trainer = config(parallelism=parallelism, **others)

    found = objections(trainer, world_size=ranks)

    assert reason in {objection.reason for objection in found}
    assert words in "\n".join(objection.text for objection in found)
    with pytest.raises(ConfigError, match=found[0].text[:20]):
        checked_layout(trainer, world_size=ranks)


def test_every_reason_is_in_the_table_above() -> None:
    marks = test_what_is_refused_names_the_field_and_the_figures.pytestmark  # type: ignore[attr-defined]
    assert {case[0] for case in marks[0].args[1]} == set(Reason)


def test_parts_of_a_share_are_counted_up() -> None:
    trainer = config(parallelism={}, global_batch_size=28, micro_batch_size=3)
    layout = replace(Layout(), shard=4)
    assert micro_batches(layout, trainer) == 3


def test_a_pipeline_has_two_micro_batches_for_each_of_its_ranks() -> None:
    assert parts_of(batch=32, parallelism={}) == 1
    assert parts_of(batch=32, parallelism={"pipeline": 2}) == 4
    assert parts_of(batch=6, parallelism={"pipeline": 2}) == 6
    assert parts_of(batch=12, parallelism={"pipeline": 2, "schedule": "interleaved"}) == 4


def parts_of(*, batch: int, parallelism: dict[str, Any]) -> int:
    trainer = config(parallelism=parallelism, global_batch_size=batch)
    layout = checked_layout(trainer, world_size=parallelism.get("pipeline", 1))
    return micro_batches(layout, trainer)
