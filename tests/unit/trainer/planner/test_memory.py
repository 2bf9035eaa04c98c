"""The bill: known sums, published activations, and what must not fall."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from drumline_contract.config import (
    MODEL_PRESETS,
    DataParallel,
    LoraConfig,
    MemoryConfig,
    ModelConfig,
    Offload,
    Precision,
    Recompute,
    TrainerConfig,
)
from drumline_contract.layout import Layout
from drumline_contract.shapes.flops import weights
from drumline_planner.memory import memory_bill
from drumline_planner.rank_weights import rank_parameters
from drumline_planner.setup import TrainingSetup, layer_parameters, parameters

from .clusters import SMALL, setup


def line(of: TrainingSetup, name: str) -> float:
    bill = memory_bill(of, capacity=1)
    return sum(each.size for each in bill.lines if each.name == name)


def memory_total(of: TrainingSetup) -> float:
    return memory_bill(of, capacity=0).total


@pytest.mark.parametrize(
    "model",
    [*MODEL_PRESETS.values(), replace(MODEL_PRESETS["vit-b16"], class_token=True)],
    ids=[*MODEL_PRESETS, "vit-b16 with a class token"],
)
def test_the_parts_of_a_model_are_the_whole(model: ModelConfig) -> None:
    parts, layer = parameters(model), layer_parameters(model)
    whole = model.layers * (layer.dense + layer.experts) + parts.embedding + parts.head
    assert whole == weights(model)


def test_a_pipeline_has_every_weight_once_and_a_tied_embedding_twice() -> None:
    model = replace(SMALL, tied_embeddings=True)
    of = setup(model=model, layout=Layout(pipeline=4), micro_batches=8)
    held = sum(sum(rank_parameters(of, place)) for place in range(4))
    assert held == weights(model) + model.vocab_size * model.hidden_size


@pytest.mark.parametrize(
    ("kind", "each"),
    [
        (DataParallel.DDP, 18.0),
        (DataParallel.ZERO1, 6 + 12 / 8),
        (DataParallel.ZERO2, 2 + 16 / 8),
    ],
)
def test_the_state_is_what_each_kind_s_module_says(kind: DataParallel, each: float) -> None:
    of = setup(layout=Layout(data_parallel=kind, replicate=8))
    names = ("parameters", "gathered weights", "gradients", "optimizer state")
    assert sum(line(of, name) for name in names) == pytest.approx(each * weights(SMALL))


@pytest.mark.parametrize(
    ("kind", "ranks"), [(DataParallel.DDP, 1), (DataParallel.ZERO1, 8), (DataParallel.FSDP, 8)]
)
def test_an_average_is_four_bytes_more_shared_out_as_the_state(
    kind: DataParallel, ranks: int
) -> None:
    copies = {"shard": 8} if kind is DataParallel.FSDP else {"replicate": 8}
    of = setup(layout=Layout(data_parallel=kind, **copies))
    averaged = replace(of, averages=True)
    name = "average of weights"
    assert line(averaged, name) == pytest.approx(4 * weights(SMALL) / ranks)
    assert memory_total(averaged) - memory_total(of) == pytest.approx(line(averaged, name))


def test_fsdp_shards_sixteen_bytes_but_keeps_whole_gradients_between_micro_batches() -> None:
    names = ("parameters", "gradients", "optimizer state")
    once, often = setup(micro_batches=1), setup(micro_batches=2)
    assert sum(line(once, n) for n in names) == pytest.approx(2 * weights(SMALL))
    assert line(often, "gradients") == pytest.approx(4 * weights(SMALL))


def test_the_kinds_of_data_parallelism_are_ordered() -> None:
    kinds = (DataParallel.DDP, DataParallel.ZERO1, DataParallel.ZERO2, DataParallel.FSDP)
    for ranks in (2, 8, 64):
        sizes = [
            memory_total(
                setup(
                    model=MODEL_PRESETS["llama-8b"],
                    layout=Layout(
                        data_parallel=kind,
                        replicate=1 if kind is DataParallel.FSDP else ranks,
                        shard=ranks if kind is DataParallel.FSDP else 1,
                    ),
                    micro_batches=1,
                )
            )
            for kind in kinds
        ]
        # with two ranks FSDP's gathered units weigh more than what it shards besides
        assert sizes[:3] == sorted(sizes[:3], reverse=True)
        assert ranks == 2 or sizes == sorted(sizes, reverse=True)


def random_setup(draw: random.Random) -> TrainingSetup:
    tensor, pipeline = draw.choice([1, 2, 4]), draw.choice([1, 2, 4])
    kinds = (DataParallel.DDP, DataParallel.ZERO1, DataParallel.ZERO2, DataParallel.FSDP)
    kind, data = draw.choice(kinds), draw.choice([1, 4])
    shard = draw.choice([1, data]) if kind is DataParallel.FSDP else 1
    experts = draw.choice([0, 8])
    return setup(
        model=replace(SMALL, experts=experts, experts_per_token=2) if experts else SMALL,
        layout=Layout(
            data_parallel=kind,
            shard=shard,
            replicate=data // shard,
            tensor=tensor,
            pipeline=pipeline,
            context=draw.choice([1, 2]),
            expert=draw.choice([1, data]) if experts else 1,
            sequence_parallel=draw.random() < 0.5,
        ),
        micro_batches=pipeline * draw.randint(1, 4),
        micro_batch=draw.randint(1, 4),
        recompute=draw.choice(list(Recompute)),
        precision=draw.choice([Precision.BF16, Precision.FP32]),
    )


def test_memory_never_falls_when_a_size_grows() -> None:
    draw = random.Random(11)
    for _ in range(150):
        plain = random_setup(draw)
        model, before = plain.model, memory_total(plain)
        larger = [
            replace(plain, micro_batch=plain.micro_batch + 1),
            replace(plain, sequence_length=2 * plain.sequence_length),
            replace(plain, model=replace(model, layers=model.layers + plain.layout.pipeline)),
            replace(plain, model=replace(model, hidden_size=2 * model.hidden_size)),
            replace(plain, model=replace(model, ffn_size=2 * model.ffn_size)),
            replace(plain, model=replace(model, vocab_size=2 * model.vocab_size)),
            replace(plain, model=replace(model, kv_heads=model.heads)),
            replace(plain, model=replace(model, experts=2 * model.experts)),
            replace(plain, micro_batches=2 * plain.micro_batches),
        ]
        assert all(memory_total(each) >= before for each in larger)


def test_three_layers_of_activations_stay_while_the_others_go_to_the_host() -> None:
    """One is computed and two are copied (`memory.offloaded_activations`)."""
    of = setup()
    host = replace(of, memory=MemoryConfig(offload_activations=Offload.CPU))
    assert line(host, "activations") == pytest.approx(3 / 8 * line(of, "activations"))
    note = next(each.note for each in memory_bill(host, capacity=1).lines if "activ" in each.name)
    assert "GiB of them on the host" in note


def test_gradients_that_are_summed_after_each_micro_batch_are_sharded() -> None:
    single, several = (setup(layout=Layout(shard=8), micro_batches=count) for count in (1, 4))
    each = replace(several, memory=MemoryConfig(shard_gradients=True))
    assert line(several, "gradients") == pytest.approx(8 * line(single, "gradients"))
    assert line(each, "gradients") == line(single, "gradients")


def test_every_offload_and_adapters_cost_less() -> None:
    alone = setup(layout=Layout(shard=1), micro_batches=1)
    full = memory_total(alone)
    for name in ("offload_optimizer", "offload_parameters", "offload_activations"):
        cheaper = replace(alone, memory=MemoryConfig(**{name: Offload.CPU}))
        assert memory_total(cheaper) < full
    adapters = [memory_total(replace(alone, lora=LoraConfig(base_bits=bits))) for bits in (16, 4)]
    assert full > adapters[0] > adapters[1]


def test_the_reference_of_preferences_is_shared_out_as_the_model_by_fsdp_alone() -> None:
    whole = 2 * weights(MODEL_PRESETS["llama-8b"])
    for kind, ranks in ((DataParallel.FSDP, 4), (DataParallel.ZERO2, 1), (DataParallel.DDP, 1)):
        layout = Layout(data_parallel=kind, shard=4)
        alone = setup(model=MODEL_PRESETS["llama-8b"], layout=layout)
        beside = replace(alone, frozen_copy=True)
        assert line(beside, "reference") == pytest.approx(whole / ranks, rel=1e-3)
        more = memory_total(beside) - memory_total(alone)
        assert more == pytest.approx(line(beside, "reference"))
    preferring = TrainerConfig.from_dict({"dpo": {}})
    for config, copied in ((preferring, True), (replace(preferring, lora=LoraConfig()), False)):
        assert TrainingSetup.of(config, Layout()).frozen_copy is copied


def test_packed_weights_are_on_every_rank_and_only_projections_are_packed() -> None:
    """`PackedLoraLinear` keeps them in buffers, which FSDP does not share out."""
    model = MODEL_PRESETS["llama-70b"]
    packed = LoraConfig(base_bits=4)
    on_eight = setup(model=model, layout=Layout(shard=8), lora=packed, micro_batches=1)
    alone = replace(on_eight, layout=Layout(shard=1))
    assert line(on_eight, "packed parameters") == line(alone, "packed parameters")
    assert line(alone, "packed parameters") == pytest.approx(68.45e9 * 4.5 / 8, rel=0.01)
    ends = 2 * model.vocab_size * model.hidden_size
    assert line(alone, "parameters") == pytest.approx(2 * ends, rel=0.01)
    assert line(on_eight, "parameters") == pytest.approx(2 * ends / 8, rel=0.01)
    doubly = replace(alone, lora=replace(packed, double_quantization=True))
    assert line(doubly, "packed parameters") < line(alone, "packed parameters")
    attention = replace(alone, lora=replace(packed, targets="query,value"))
    assert line(attention, "packed parameters") < 0.15 * line(alone, "packed parameters")
    experts = setup(model=MODEL_PRESETS["qwen-moe"], layout=Layout(), lora=packed)
    assert line(experts, "packed parameters") < 0.1 * weights(MODEL_PRESETS["qwen-moe"])
