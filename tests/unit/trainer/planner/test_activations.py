"""Predicted bytes of saved activations are those that autograd keeps: every tensor counted.

The modules are the trainer's own, cut for one rank of a tensor axis whose collectives are torch's
fake ones; nothing is estimated here, storages are counted.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from drumline_contract.config import Family, MemoryConfig, ModelConfig, Precision, Recompute
from drumline_contract.config.latent_attention import LatentAttention
from drumline_contract.config.variants import Activation, NormPlacement
from drumline_contract.layout import Axis, Layout
from drumline_planner import activations
from drumline_planner.setup import Software, TrainingSetup
from drumline_trainer.memory import recompute as recompute_module
from drumline_trainer.memory.recompute import recompute
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.loss import token_losses_sum
from drumline_trainer.parallelism.tensor_parallel.apply import tensor_parallel
from drumline_trainer.parallelism.tensor_parallel.vocabulary import vocabulary_parallel_loss
from drumline_trainer.sharding.world import World

CPU = Software(name="torch on CPU", fused_norms=False)
BASE: dict[str, Any] = {"layers": 4, "hidden_size": 128, "vocab_size": 512}
MODELS = {
    "llama": ModelConfig(**BASE, ffn_size=384, heads=8, kv_heads=8, tied_embeddings=False),
    "llama-grouped": ModelConfig(**BASE, ffn_size=256, heads=8, kv_heads=2),
    "latent": ModelConfig(
        **BASE,
        ffn_size=256,
        heads=8,
        kv_heads=8,
        head_size=20,
        latent_attention=LatentAttention(
            query_rank=24, key_value_rank=40, turned_size=8, value_size=16
        ),
    ),
    "granite without positions": ModelConfig(
        **BASE,
        ffn_size=256,
        heads=8,
        kv_heads=2,
        no_rope_every=2,
        embedding_multiplier=12.0,
        residual_multiplier=0.25,
        logit_divisor=4.0,
    ),
    "gpt2": ModelConfig(**BASE, family=Family.GPT2, ffn_size=512, heads=8, kv_heads=8),
}
AXES = ((1, True), (2, True), (2, False), (4, True))
BATCH, LENGTH = 2, 64
CASES = list(itertools.product(MODELS, Recompute, AXES))


class Counter:
    """Bytes of storages that are kept, each once."""

    def __init__(self, parameters: Iterator[Tensor]) -> None:
        self.own = {p.untyped_storage()._cdata for p in parameters}
        self.kept: dict[int, Tensor] = {}

    def keep(self, tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage()._cdata
        if place not in self.own:
            self.kept[place] = tensor
        return tensor

    @property
    def size(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self.kept.values())


@contextmanager
def tensor_axis(ranks: int, *, by_position: bool) -> Iterator[World | None]:
    """A world of one process whose collectives do nothing."""
    if ranks == 1:
        yield None
        return
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        layout = Layout(tensor=ranks, sequence_parallel=by_position)
        yield World.join(layout, device=torch.device("cpu"))
    finally:
        dist.destroy_process_group()


def kept_by_autograd(
    model: ModelConfig,
    mode: Recompute,
    ranks: int,
    *,
    by_position: bool,
    stored: list[Any],
    length: int = LENGTH,
) -> int:
    with tensor_axis(ranks, by_position=by_position) as world:
        module, loss = build_on_meta(model), token_losses_sum
        if world is not None:
            tensor_parallel(module, world, sequence_parallel=by_position)
            group = world.group(Axis.TENSOR)
            assert group is not None
            loss = functools.partial(
                vocabulary_parallel_loss, group=group, vocabulary=model.vocab_size
            )
        recompute(module, mode=mode, every=None)
        module.to_empty(device="cpu")
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.02)
        counter = Counter(module.parameters())
        tokens = torch.randint(0, 256, (BATCH, length))
        with torch.autograd.graph.saved_tensors_hooks(counter.keep, lambda tensor: tensor):
            total = loss(module(tokens), tokens)
        # what selective recompute keeps, it keeps beside autograd
        for value in tree_leaves([list(storage.values()) for storage in stored]):
            tensor = getattr(value, "val", value)
            if isinstance(tensor, Tensor):
                counter.keep(tensor)
        del total
        return counter.size


def watched_storages(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What selective recompute is going to keep."""
    stored: list[Any] = []
    made = recompute_module.create_selective_checkpoint_contexts

    def watched(policy: Any) -> Any:
        keep, reuse = made(policy)
        stored.append(reuse.storage)
        return keep, reuse

    monkeypatch.setattr(recompute_module, "create_selective_checkpoint_contexts", watched)
    return stored


@pytest.mark.filterwarnings("ignore:A saved_tensors_hooks context:FutureWarning")
@pytest.mark.parametrize(("name", "mode", "axis"), CASES)
def test_saved_activations_are_predicted_to_two_percent(
    name: str, mode: Recompute, axis: tuple[int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = watched_storages(monkeypatch)
    ranks, by_position = axis
    model = MODELS[name]
    counted = kept_by_autograd(model, mode, ranks, by_position=by_position, stored=stored)
    setup = TrainingSetup(
        model=model,
        layout=Layout(tensor=ranks, sequence_parallel=by_position),
        sequence_length=LENGTH,
        micro_batch=BATCH,
        micro_batches=1,
        recompute=mode,
        memory=MemoryConfig(recompute=mode),
        precision=Precision.FP32,
        software=CPU,
    )
    predicted = (
        activations.embedding_kept(setup)
        + activations.layers_kept(setup, range(model.layers))
        + activations.head_kept(setup)
    )
    # rotary tables are kept by recompute itself, not by autograd: a constant of the sequence
    tables = 4 * LENGTH * model.features_turned if model.family is Family.LLAMA else 0
    if mode is not Recompute.NONE:
        predicted -= tables
    assert predicted == pytest.approx(counted, rel=0.02)
    assert predicted == pytest.approx(counted, abs=8)  # in fact to the byte


@pytest.mark.parametrize("window", [None, 200])
def test_soft_caps_are_billed_for_the_scores_they_keep(window: int | None) -> None:
    length = 1100
    model = ModelConfig(
        **{**BASE, "layers": 2},
        ffn_size=256,
        heads=8,
        kv_heads=4,
        norm_placement=NormPlacement.AROUND,
        activation=Activation.GELU_TANH,
        scaled_embedding=True,
        attention_softcap=50.0,
        logit_softcap=30.0,
        sliding_window=window,
    )
    setup = TrainingSetup(
        model=model,
        layout=Layout(),
        sequence_length=length,
        micro_batch=BATCH,
        micro_batches=1,
        recompute=Recompute.NONE,
        memory=MemoryConfig(),
        precision=Precision.FP32,
        software=CPU,
    )
    kept = kept_by_autograd(model, Recompute.NONE, 1, by_position=False, stored=[], length=length)
    predicted = (
        activations.embedding_kept(setup)
        + activations.layers_kept(setup, range(model.layers))
        + activations.head_kept(setup)
    )
    assert predicted == pytest.approx(kept, rel=0.05)


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 30
