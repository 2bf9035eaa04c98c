"""What is refused and why; and that nearly nothing is."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from drumline_contract.config import ConfigError, TrainerConfig
from drumline_contract.layout import Layout
from drumline_contract.layout_validation import (
    ViolationReason,
    micro_batch_count,
    validated_layout,
    violations,
    worker_layout,
)
from tests.unit.trainer.layout_matrix import config, matrix

SERVER = "parameter-server"


def test_nearly_all_of_the_matrix_is_legal() -> None:
    verdicts = [violations(config, world_size=ranks) for config, ranks in matrix()]
    refused = Counter(verdict[0].reason for verdict in verdicts if verdict)
    legal = sum(not verdict for verdict in verdicts)

    assert legal / len(verdicts) >= 0.85, refused
    assert set(refused) == {ViolationReason.SELECTIVE}, "and this for nothing else"


@pytest.mark.parametrize(
    ("reason", "words", "ranks", "changes"),
    [
        (ViolationReason.WORLD_SIZE, "6 ranks", 6, {"parallelism": {"tensor": 4}}),
        (
            ViolationReason.REPLICATE,
            "is for fsdp",
            4,
            {"parallelism": {"data_parallel": "ddp", "replicate": 2}},
        ),
        (
            ViolationReason.FROZEN,
            "freeze: every stage of a pipeline goes backward",
            2,
            {"parallelism": {"pipeline": 2}, "freeze": "embedding.*"},
        ),
        (ViolationReason.HEADS, "model.heads 4 do not", 8, {"parallelism": {"tensor": 8}}),
        (
            ViolationReason.HEADS,
            "parallelism.tensor: 4 neither divides model.kv_heads 6 nor is a multiple of them",
            4,
            {"model": {"heads": 12, "kv_heads": 6, "head_size": 16}, "parallelism": {"tensor": 4}},
        ),
        (
            ViolationReason.FFN,
            "model.ffn_size 63",
            2,
            {"model": {"ffn_size": 63}, "parallelism": {"tensor": 2}},
        ),
        (
            ViolationReason.SEQUENCE,
            "data.sequence_length: 18",
            2,
            {"data": {"sequence_length": 18}, "parallelism": {"context": 2}},
        ),
        (
            ViolationReason.POSITIONS,
            "over model.max_positions 8",
            1,
            {"model": {"family": "gpt2", "kv_heads": 4, "max_positions": 8}},
        ),
        (
            ViolationReason.IMAGES,
            "not cut by position",
            2,
            {"model": {"family": "vit", "kv_heads": 4}, "parallelism": {"context": 2}},
        ),
        (
            ViolationReason.SEQUENCE,
            "17 does not divide by 2, as context 1 and tensor 2 need it; or set parallelism.seq",
            2,
            {
                "model": {"family": "vit", "kv_heads": 4, "class_token": True},
                "parallelism": {"tensor": 2},
            },
        ),
        (
            ViolationReason.WINDOWS,
            "model.sliding_window asks for the nearest only",
            2,
            {"model": {"sliding_window": 8}, "parallelism": {"context": 2}},
        ),
        (
            ViolationReason.SCORES,
            "scores that have no model.attention_softcap",
            2,
            {"model": {"attention_softcap": 50.0}, "parallelism": {"context": 2}},
        ),
        (
            ViolationReason.HEAD_NORMS,
            "model.query_key_norm_over_heads normalizes all of them",
            2,
            {
                "model": {"query_key_norm": True, "query_key_norm_over_heads": True},
                "parallelism": {"tensor": 2},
            },
        ),
        (
            ViolationReason.EXPERT_BIASES,
            "with model.expert_bias each would add its bias; use expert parallelism",
            2,
            {"model": {"experts": 4, "expert_bias": True}, "parallelism": {"tensor": 2}},
        ),
        (ViolationReason.LAYERS, "8 stages", 8, {"parallelism": {"pipeline": 8}}),
        (
            ViolationReason.SELECTIVE,
            "use blocks or full",
            2,
            {
                "memory": {"recompute": "selective"},
                "parallelism": {"pipeline": 2, "schedule": "zbv"},
            },
        ),
        (
            ViolationReason.COMPILED,
            "a compiled layer goes backward as a whole; use 1f1b",
            2,
            {"compile": "blocks", "parallelism": {"pipeline": 2, "schedule": "zbv"}},
        ),
        (
            ViolationReason.STAGES_PER_RANK,
            "exactly 2, not 3",
            2,
            {"parallelism": {"pipeline": 2, "schedule": "zbv", "stages_per_rank": 3}},
        ),
        (
            ViolationReason.MICRO_BATCHES,
            "at least 2",
            2,
            {"micro_batch_size": 32, "parallelism": {"pipeline": 2}},
        ),
        (
            ViolationReason.UNEVEN_MICRO_BATCHES,
            "32 samples",
            2,
            {"micro_batch_size": 5, "parallelism": {"pipeline": 2}},
        ),
        (
            ViolationReason.ROUNDS,
            "5 do not divide into 2",
            2,
            {
                "global_batch_size": 5,
                "micro_batch_size": 1,
                "parallelism": {"pipeline": 2, "schedule": "interleaved"},
            },
        ),
        (ViolationReason.BATCH, "use a multiple of 3", 3, {}),
        (ViolationReason.NO_EXPERTS, "no experts", 2, {"parallelism": {"expert": 2}}),
        (
            ViolationReason.EXPERTS,
            "model.experts 3",
            2,
            {"model": {"experts": 3}, "parallelism": {"expert": 2}},
        ),
        (
            ViolationReason.EXPERT_RANKS,
            "1 ranks",
            2,
            {"model": {"experts": 4}, "parallelism": {"tensor": 2, "expert": 2}},
        ),
        (
            ViolationReason.NODES,
            "4 copies of the model do not divide by 3",
            4,
            {"parallelism": {"data_parallel": SERVER, "server": {"copies_per_node": 3}}},
        ),
        (
            ViolationReason.PREFERENCES,
            "dpo: compares whole answers, and context 2 cuts them",
            2,
            {"parallelism": {"context": 2}, "lora": {}, "dpo": {}},
        ),
        (
            ViolationReason.PROMPTS,
            "evaluation.prompts: needs the logits of whole sequences, and tensor 2",
            2,
            {"parallelism": {"tensor": 2}, "evaluation": {"prompts": "Hello"}},
        ),
        (
            ViolationReason.ADAPTED_EXPERTS,
            "parallelism.tensor 2 cuts each expert",
            2,
            {
                "model": {"experts": 4},
                "parallelism": {"tensor": 2},
                "lora": {"targets": "experts_down"},
            },
        ),
        (
            ViolationReason.SERVERS,
            "there are 2",
            4,
            {
                "parallelism": {
                    "data_parallel": SERVER,
                    "server": {"copies_per_node": 2, "servers": 3},
                }
            },
        ),
    ],
    ids=lambda value: value.value if isinstance(value, ViolationReason) else "",
)
def test_what_is_refused_names_the_field_and_the_figures(
    reason: ViolationReason, words: str, ranks: int, changes: dict[str, Any]
) -> None:
    parallelism = changes.get("parallelism", {})
    rest = {key: value for key, value in changes.items() if key != "parallelism"}
    trainer = config(parallelism=parallelism, **rest)

    result = violations(trainer, world_size=ranks)

    assert reason in {objection.reason for objection in result}
    assert words in "\n".join(objection.text for objection in result)
    with pytest.raises(ConfigError, match=result[0].text[:20]):
        validated_layout(trainer, world_size=ranks)


@pytest.mark.parametrize("axis", ["context", "pipeline", "expert"])
def test_a_module_of_transformers_is_cut_by_tensor_and_fsdp_alone(axis: str) -> None:
    raw = {"model": {"family": "transformers"}, "model_from": "/m"}
    of_axis = TrainerConfig.from_dict({**raw, "parallelism": {axis: 2}})
    (violation,) = violations(of_axis, world_size=2)
    assert violation.reason is ViolationReason.TRANSFORMERS
    assert f"set parallelism.{axis} to 1" in violation.text
    by_plan = TrainerConfig.from_dict({**raw, "parallelism": {"tensor": 2}})
    assert not validated_layout(by_plan, world_size=4).sequence_parallel


def test_every_reason_is_tried_above() -> None:
    marks = test_what_is_refused_names_the_field_and_the_figures.pytestmark  # type: ignore[attr-defined]
    cases = {case[0] for case in marks[0].args[1]}
    assert cases | {ViolationReason.TRANSFORMERS} == set(ViolationReason)


@pytest.mark.parametrize("micro_batch_size", [None, 1])
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_fewer_samples_than_ranks_are_refused_in_a_pipeline_too(
    micro_batch_size: int | None, schedule: str
) -> None:
    trainer = config(
        parallelism={"pipeline": 2, "schedule": schedule},
        global_batch_size=2,
        micro_batch_size=micro_batch_size,
    )
    assert violations(trainer, world_size=8)[0].reason is ViolationReason.BATCH


def test_parts_of_a_share_are_counted_up() -> None:
    trainer = config(parallelism={}, global_batch_size=28, micro_batch_size=3)
    layout = Layout(shard=4)
    assert micro_batch_count(layout, trainer) == 3


def test_a_pipeline_has_two_micro_batches_for_each_of_its_ranks() -> None:
    assert parts_of(batch=32, parallelism={}) == 1
    assert parts_of(batch=32, parallelism={"pipeline": 2}) == 4
    assert parts_of(batch=6, parallelism={"pipeline": 2}) == 6
    assert parts_of(batch=12, parallelism={"pipeline": 2, "schedule": "interleaved"}) == 4


def parts_of(*, batch: int, parallelism: dict[str, Any]) -> int:
    trainer = config(parallelism=parallelism, global_batch_size=batch)
    layout = validated_layout(trainer, world_size=parallelism.get("pipeline", 1))
    return micro_batch_count(layout, trainer)


def test_a_copy_that_trains_alone_is_judged_as_a_run_of_its_own() -> None:
    local = {"data_parallel": "ddp", "local_sgd": {"every_steps": 10}}
    trainer = config(parallelism=local, global_batch_size=8)
    alone, own = worker_layout(validated_layout(trainer, world_size=4), trainer)
    assert (alone.world_size, own.global_batch_size) == (1, 2)
    experts = config(experts=4, parallelism={**local, "expert": 2}, global_batch_size=8)
    assert {violation.reason for violation in violations(experts, world_size=4)} == {
        ViolationReason.EXPERT_RANKS
    }


def test_a_node_of_asynchronous_copies_is_one_worker() -> None:
    server = {"mode": "asynchronous", "copies_per_node": 2}
    trainer = config(parallelism={"data_parallel": SERVER, "server": server}, global_batch_size=8)
    alone, own = worker_layout(validated_layout(trainer, world_size=4), trainer)
    assert (alone.data_parallel, alone.replicate) == ("ddp", 2)
    assert own.global_batch_size == 4
    together = config(parallelism={"data_parallel": SERVER}, global_batch_size=8)
    layout = validated_layout(together, world_size=4)
    assert worker_layout(layout, together) == (layout, together)
