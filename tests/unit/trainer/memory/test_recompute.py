"""What each way of recomputing keeps, how often it computes, and that nothing else changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from drumline_contract.config import Fp8Scaling, ModelConfig, Recompute
from drumline_trainer.memory.recompute import recompute
from drumline_trainer.models.build import build_on_meta, layer_modules
from drumline_trainer.numerics import fp8
from drumline_trainer.numerics.fp8 import multiply_in_fp8
from tests.unit.trainer.memory.alive import Alive

LAYERS, RUN, TOKENS = 16, 4, 64
MODEL = ModelConfig(
    layers=LAYERS, hidden_size=64, ffn_size=128, heads=2, kv_heads=2, vocab_size=256
)
INPUT = 4 * TOKENS * MODEL.hidden_size
"""Bytes of one layer's input."""


def model_with(
    mode: Recompute, *, every: int | None = None, config: ModelConfig = MODEL
) -> nn.Module:
    model = build_on_meta(config).to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2, generator=generator)
    recompute(model, mode=mode, every=every)
    return model


def backward(model: nn.Module) -> list[Tensor]:
    """The loss and all gradients."""
    loss = model(torch.arange(TOKENS).remainder(256).unsqueeze(0)).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def most_bytes(mode: Recompute) -> int:
    """At the worst moment of forward and backward, weights and their gradients left out."""
    model = model_with(mode)
    model.requires_grad_(requires_grad=False)
    model.embedding.requires_grad_()
    with Alive() as alive:
        for weight in model.parameters():
            alive.leave_out(weight)
        backward(model)
    return alive.most


@pytest.mark.parametrize("every", [None, 1, 3, LAYERS])
def test_bits_are_those_without(every: int | None) -> None:
    plain = backward(model_with(Recompute.NONE))
    for mode in (Recompute.SELECTIVE, Recompute.FULL, Recompute.BLOCKS):
        again = backward(model_with(mode, every=every if mode is Recompute.BLOCKS else None))
        assert all(torch.equal(item, other) for item, other in zip(plain, again, strict=True))


def test_each_keeps_less_than_the_one_before() -> None:
    none, selective, full, blocks = map(
        most_bytes, (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL, Recompute.BLOCKS)
    )
    assert none > selective > full > blocks
    inputs_kept = LAYERS / RUN + RUN - 1
    assert full - blocks == pytest.approx((LAYERS - inputs_kept) * INPUT, rel=0.01)


class Counted(TorchDispatchMode):
    """How often each operation runs."""

    def __init__(self) -> None:
        super().__init__()
        self.times: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.times[func.name()] += 1
        return func(*args, **(kwargs or {}))


def products(model: nn.Module) -> Counter[str]:
    """Matrix products of a forward and backward pass, by kind."""
    with Counted() as counted:
        model.to(torch.bfloat16)(torch.arange(TOKENS).unsqueeze(0)).square().mean().backward()
    kinds = ("aten::mm", "aten::addmm", "aten::bmm", "aten::_grouped_mm", "aten::_scaled_mm")
    return Counter({kind: counted.times[kind] for kind in kinds if counted.times[kind]})


def test_selective_computes_no_product_of_experts_again() -> None:
    mixture = replace(MODEL, layers=2, experts=4, experts_per_token=2)
    plain, selective, full = (
        products(model_with(mode, config=mixture))
        for mode in (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
    )
    assert selective == plain
    assert full["aten::_grouped_mm"] == plain["aten::_grouped_mm"] + 2 * 3


def test_selective_computes_no_product_in_fp8_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8, "has_fp8", lambda _: True)

    def products_in_fp8(mode: Recompute) -> Counter[str]:
        model = model_with(mode, config=replace(MODEL, layers=2))
        multiply_in_fp8(model, scaling=Fp8Scaling.TENSORWISE)
        return products(model)

    plain, selective, full = map(
        products_in_fp8, (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
    )
    assert plain["aten::_scaled_mm"] > 0
    assert selective == plain
    assert full["aten::_scaled_mm"] > plain["aten::_scaled_mm"]


def test_selective_computes_no_attention_of_documents_again() -> None:
    """Its kernel needs a GPU: here its shapes alone are computed."""
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - imports torch's compiler, 2 s

    class Attention(nn.Module):
        def forward(self, x_THE: Tensor) -> Tensor:
            ends = torch.zeros(3, dtype=torch.int32, device=x_THE.device)
            return cast("Tensor", varlen_attn(x_THE, x_THE, x_THE, ends, ends, 8, 8)).sin()

    for mode, attentions in ((Recompute.SELECTIVE, 1), (Recompute.FULL, 2)):
        stage = nn.Module()
        recompute(stage, mode=mode, every=None)
        with FakeTensorMode(), Counted() as counted:
            x_THE = torch.zeros(16, 2, 64, dtype=torch.bfloat16, requires_grad=True)
            stage.layer_loop([Attention()], x_THE).sum().backward()
        assert counted.times["torch_attn::_varlen_attn"] == attentions


@pytest.mark.parametrize(
    ("mode", "times"),
    [
        (Recompute.NONE, 1),
        (Recompute.SELECTIVE, 2),
        (Recompute.FULL, 2),
        (Recompute.BLOCKS, 3 - 1 / RUN),
    ],
)
def test_how_often_a_layer_runs_forward(mode: Recompute, times: float) -> None:
    model = model_with(mode)
    calls: list[nn.Module] = []
    for layer in layer_modules(model):
        layer.register_forward_pre_hook(lambda module, _: calls.append(module))
    backward(model)
    assert len(calls) == times * LAYERS
