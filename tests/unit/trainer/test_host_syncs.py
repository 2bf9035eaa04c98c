"""How often the host waits for its GPU in a training step: once, for the totals of the step.

And no step works on tensors of the host and of the GPU together: the pretended GPU refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import RestoreTier
from drumline_contract.config import TrainerConfig
from drumline_contract.config.data import Packing
from drumline_contract.config.variants import Family
from drumline_contract.layout_validation import validated_layout
from drumline_trainer.assembly.assemble import assemble
from drumline_trainer.assembly.optimizer import build_optimizer
from drumline_trainer.forward_backward import forward_backward
from drumline_trainer.metrics.reporter import RunReporter
from drumline_trainer.models.documents import Documents
from drumline_trainer.optimization.gradient_clipping import clip_gradients
from drumline_trainer.parallelism.batch_shard import MicroBatch, StepBatch
from drumline_trainer.sharding.world import World
from tests.unit.trainer.pretended_gpu import GPU, PretendedGpu

pytestmark = pytest.mark.extended(keep=4)

LENGTH, ROWS, MICRO_BATCHES = 32, 2, 2
MODEL: dict[str, Any] = {"layers": 2, "hidden_size": 32, "ffn_size": 64, "heads": 2, "kv_heads": 2}
EXPERTS = MODEL | {
    "experts": 4,
    "experts_per_token": 2,
    "expert_ffn_size": 32,
    "shared_experts": 1,
    "balance_weight": 0.01,
}


DEEPSEEK = EXPERTS | {
    "head_size": 24,
    "latent_attention": {
        "query_rank": 16,
        "key_value_rank": 16,
        "turned_size": 8,
        "value_size": 16,
    },
    "routing": {"scores": "sigmoid", "groups": 2, "groups_per_token": 1, "scale": 2.5},
    "dense_layers": 1,
}
GPT_OSS = EXPERTS | {
    "attention_sinks": True,
    "activation": "clamped_swiglu",
    "expert_bias": True,
    "shared_experts": 0,
    "sliding_window": 8,
    "full_attention_every": 2,
    "rope_scaling": {"kind": "yarn", "factor": 4.0, "original_positions": 16},
}
IMAGES = MODEL | {
    "family": "vit",
    "image_size": 8,
    "patch_size": 4,
    "classes": 5,
    "class_token": True,
}


def a_config(change: dict[str, Any], *, ranks: int) -> TrainerConfig:
    return TrainerConfig.from_dict(
        {
            "model": MODEL,
            "steps": 1000,
            "log_every_steps": 1000,
            "global_batch_size": ROWS * MICRO_BATCHES * ranks,
            "micro_batch_size": ROWS,
            "data": {"sequence_length": LENGTH},
        }
        | change
    )


def a_batch(config: TrainerConfig) -> StepBatch:
    generator = np.random.default_rng(0)
    documents = config.data.packing is Packing.SEPARATE or config.dpo is not None

    def micro_batch() -> MicroBatch:
        if config.model.family is Family.VIT:
            images = generator.integers(0, 256, (ROWS, 3, 8, 8), dtype=np.uint8)
            classes = torch.from_numpy(generator.integers(0, 5, ROWS))
            return MicroBatch(samples=range(ROWS), inputs=torch.from_numpy(images), targets=classes)
        tokens = generator.integers(0, 256, (ROWS, LENGTH + 1))
        places = np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1))
        halves, positions = np.divmod(places, LENGTH // 2)
        return MicroBatch(
            samples=range(ROWS),
            inputs=torch.from_numpy(tokens[:, :-1]),
            targets=torch.from_numpy(tokens[:, 1:]),
            documents=Documents.of(halves, positions) if documents else None,
        )

    return StepBatch(
        targets=ROWS * LENGTH * MICRO_BATCHES,
        micro_batches=[micro_batch() for _ in range(MICRO_BATCHES)],
    )


def waits_of_a_step(gpu: PretendedGpu, change: dict[str, Any], *, ranks: int) -> list[str]:
    """Of the second step: the first one may make what stays."""
    config = a_config(change, ranks=ranks)
    layout = validated_layout(config, world_size=ranks)
    world = (
        World.join(layout, device=GPU) if ranks > 1 else World(layout=layout, rank=0, device=GPU)
    )
    placement = Placement(rank=0, world_size=ranks, local_rank=0, attempt=0, generation=0)
    reporter = RunReporter(
        config=config,
        placement=placement,
        heartbeats=None,
        write=lambda _: None,
        losses_file=None,
        peak_flops=None,
    )
    with gpu:
        model = assemble(config, world)
        gpu.assembled = True
        held = [each for part in model.modules for each in (*part.parameters(), *part.buffers())]
        for tensor in (*held, *(part.tensor for part in (*model.slices, *model.frozen))):
            _ = tensor.detach().normal_(std=0.02) if tensor.is_floating_point() else tensor.zero_()
        optimizer = build_optimizer(model.slices, config.optimizer, world, memory=config.memory)
        model.weights.refresh_copies()
        reporter.begin(0, tier=RestoreTier.INITIAL)
        for step in (1, 2):
            gpu.waits.clear()
            batch = a_batch(config)
            loss = forward_backward(model, iter([batch]), device=GPU, reporter=reporter)
            gradients = model.gradients()
            reporter.count_gradients(gradients)
            totals = clip_gradients(
                model.slices,
                gradients,
                loss=loss,
                world=world,
                max_norm=config.optimizer.max_gradient_norm,
            )
            assert totals.finite
            optimizer.update(gradients, rate=1e-3)
            model.weights.refresh_copies()
            reporter.finish_step(
                step, losses={step: totals.loss}, gradient_norm=totals.gradient_norm
            )
    return gpu.waits


LOW = {"precision": "bf16"}
ALONE: dict[str, dict[str, Any]] = {
    "dense": {},
    "bf16": LOW,
    "logged": {"log_every_steps": 1},
    "not clipped": {"optimizer": {"max_gradient_norm": None}},
    "documents": LOW | {"data": {"sequence_length": LENGTH, "packing": "separate"}},
    "documents, heads of no kernel": LOW
    | {
        "model": MODEL | {"heads": 8},
        "data": {"sequence_length": LENGTH, "packing": "separate"},
    },
    "window": {"model": MODEL | {"sliding_window": 8}},
    "soft caps": {"model": MODEL | {"attention_softcap": 30, "logit_softcap": 30}},
    "fp8": LOW | {"fp8": True},
    "fp8, rowwise": LOW | {"fp8": True, "fp8_scaling": "rowwise"},
    "experts": LOW | {"model": EXPERTS},
    "gpt2": {"model": MODEL | {"family": "gpt2"}},
    "gpt2, bf16, dropout": LOW | {"model": MODEL | {"family": "gpt2", "dropout": 0.1}},
    "fp16": {"precision": "fp16"},
    "latent attention": LOW | {"model": DEEPSEEK},
    "sinks, yarn": LOW | {"model": GPT_OSS},
    "images": LOW | {"model": IMAGES},
    "preferences": LOW | {"dpo": {}},
    "preferences by adapters": LOW | {"dpo": {}, "lora": {"base_bits": 4}},
    "lora, 4 bits packed twice": LOW | {"lora": {"base_bits": 4, "double_quantization": True}},
    "sgd": {"optimizer": {"kind": "sgd"}},
    "muon in bf16": LOW | {"optimizer": {"kind": "muon", "bf16_iteration": True}},
    "recompute, blocks": LOW | {"memory": {"recompute": "blocks"}},
    "lora": LOW | {"lora": {}},
    "lora, 4 bits": LOW | {"lora": {"base_bits": 4}},
    "muon": {"optimizer": {"kind": "muon"}},
    "average": {"optimizer": {"average_decay": 0.99}},
    "recompute": {"memory": {"recompute": "full"}},
    "recompute, selective": {"memory": {"recompute": "selective"}},
}
TENSOR: dict[str, Any] = {"parallelism": {"data_parallel": "ddp", "tensor": 2}}
PIPELINE: dict[str, Any] = {"global_batch_size": ROWS * MICRO_BATCHES}
SHARED: dict[str, dict[str, Any]] = {
    **{kind: LOW | {"parallelism": {"data_parallel": kind}} for kind in ("ddp", "zero1", "zero2")},
    "tensor": TENSOR,
    "tensor, fp8": TENSOR | LOW | {"fp8": True},
    "tensor, 4 bits": TENSOR | LOW | {"lora": {"base_bits": 4}},
    "tensor, latent attention": TENSOR | LOW | {"model": DEEPSEEK},
    "tensor, gpt2": TENSOR | {"model": MODEL | {"family": "gpt2"}},
    "context": {"parallelism": {"data_parallel": "ddp", "context": 2}},
    "pipeline": PIPELINE | {"parallelism": {"data_parallel": "ddp", "pipeline": 2}},
    "pipeline, zbv": PIPELINE
    | LOW
    | {
        "model": MODEL | {"layers": 4},
        "parallelism": {"data_parallel": "ddp", "pipeline": 2, "schedule": "zbv"},
    },
    "activations in the host's memory": {
        "parallelism": {"data_parallel": "ddp"},
        "memory": {"offload_activations": "cpu"},
    },
}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> PretendedGpu:
    return PretendedGpu(monkeypatch, capability=(9, 0))


@pytest.fixture
def second_rank() -> Iterator[None]:
    """That does as this one does."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ALONE)
def test_the_host_waits_once_a_step(name: str, gpu: PretendedGpu) -> None:
    assert waits_of_a_step(gpu, ALONE[name], ranks=1) == ["_to_copy: a blocking copy"]


@pytest.mark.usefixtures("second_rank")
@pytest.mark.parametrize("name", SHARED)
def test_it_does_so_where_ranks_share_the_work(name: str, gpu: PretendedGpu) -> None:
    assert waits_of_a_step(gpu, SHARED[name], ranks=2) == ["_to_copy: a blocking copy"]


@pytest.mark.usefixtures("second_rank")
def test_rows_that_travel_to_experts_are_waited_for_once_a_layer(gpu: PretendedGpu) -> None:
    shared_out = LOW | {"model": EXPERTS, "parallelism": {"data_parallel": "ddp", "expert": 2}}
    *counts, totals = waits_of_a_step(gpu, shared_out, ranks=2)
    assert counts == ["Event.synchronize"] * (MICRO_BATCHES * MODEL["layers"])
    assert totals == "_to_copy: a blocking copy"


def test_experts_in_fp32_have_no_grouped_kernel_and_wait(gpu: PretendedGpu) -> None:
    waits = waits_of_a_step(gpu, {"model": EXPERTS}, ranks=1)
    assert len(waits) == MICRO_BATCHES * MODEL["layers"] + 1


def test_tensors_of_the_host_and_of_the_gpu_do_not_meet(gpu: PretendedGpu) -> None:
    with gpu:
        there, here = torch.ones(2, device=GPU), torch.ones(2)
        assert (there + torch.tensor(1.0)).tolist() == [2, 2]  # a mere number
        with pytest.raises(RuntimeError, match="same device"):
            _ = there + here


def test_what_has_other_bits_each_time_is_refused(gpu: PretendedGpu) -> None:
    with gpu:
        scores = torch.zeros(1, 2, 3, device=GPU)
        with pytest.raises(RuntimeError, match="deterministic"):
            torch.nn.functional.cross_entropy(scores, torch.zeros((1, 3), dtype=int, device=GPU))
