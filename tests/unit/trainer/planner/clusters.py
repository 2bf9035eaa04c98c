"""Clusters and goals of the planner's tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from drumline_contract.config import DataConfig, Family, ModelConfig, Precision, TrainerConfig
from drumline_contract.hardware import GPU_MODELS, LINKS, GpuCluster
from drumline_contract.layout import Layout
from drumline_planner.network import cluster_of
from drumline_planner.setup import TrainingSetup
from drumline_planner.space import Goal

SMALL = ModelConfig(
    layers=8, hidden_size=2048, ffn_size=5632, heads=16, kv_heads=8, vocab_size=32_000
)


def cluster(gpus: int, *, gpu: str = "H100", network: str = "infiniband-ndr") -> GpuCluster:
    return cluster_of(GPU_MODELS[gpu], gpus=gpus, network=LINKS[network])


def goal(
    gpus: int,
    *,
    batch: int = 32,
    model: ModelConfig = SMALL,
    sequence: int = 2048,
    **more: Any,
) -> Goal:
    config = TrainerConfig(
        model=model,
        data=DataConfig(sequence_length=sequence),
        global_batch_size=batch,
        precision=Precision.BF16,
    )
    return Goal(config=config, cluster=cluster(gpus), **more)


def setup(**changed: Any) -> TrainingSetup:
    plain = TrainingSetup(
        model=SMALL, layout=Layout(shard=8), sequence_length=2048, micro_batch=1, micro_batches=4
    )
    return replace(plain, **changed)


def gpt(*, hidden: int, heads: int, layers: int) -> ModelConfig:
    """As Megatron-LM's papers have them."""
    return ModelConfig(
        family=Family.GPT2,
        vocab_size=51_200,
        layers=layers,
        hidden_size=hidden,
        ffn_size=4 * hidden,
        heads=heads,
        kv_heads=heads,
        max_positions=2048,
        dropout=0.1,
    )
