from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from drumline_trainer.config import ModelConfig
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.numerics.fp8 import (
    BACKWARD,
    FORWARD,
    Fp8Linear,
    multiply_in_fp8,
    product,
    scaled,
)


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def back(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Quantised by the definition, and turned back."""
    scale = x.abs().max() / {FORWARD: 448.0, BACKWARD: 57344.0}[dtype]
    return (x / scale).to(dtype).float() * scale


@pytest.mark.parametrize(("dtype", "bits"), [(FORWARD, 3), (BACKWARD, 2)])
def test_every_value_is_within_half_a_step(dtype: torch.dtype, bits: int) -> None:
    x = values(50, 70) * 1e-3
    it = scaled(x, dtype)
    assert it.values.dtype is dtype
    assert it.values.float().abs().max() == torch.finfo(dtype).max
    smallest = torch.finfo(dtype).smallest_normal * it.scale
    error = (it.values.float() * it.scale - x).abs()
    assert (error <= 2.0 ** -(bits + 1) * x.abs().clamp(min=smallest) * 1.001).all()


def test_zeros_stay_zeros() -> None:
    it = scaled(torch.zeros(3, 3), FORWARD)
    assert not (it.values.float() * it.scale).any()


def test_a_product_is_that_of_the_quantised_operands() -> None:
    left, right = values(5, 48), values(48, 7, seed=1)
    got = product(scaled(left, FORWARD), scaled(right, BACKWARD), dtype=torch.float32)
    torch.testing.assert_close(got, back(left, FORWARD) @ back(right, BACKWARD))


def test_a_layer_multiplies_in_e4m3_forward_and_with_e5m2_gradients_backward() -> None:
    linear = nn.Linear(24, 10)
    layer = Fp8Linear(linear)
    x, gradient = values(2, 3, 24).requires_grad_(), values(2, 3, 10, seed=3)
    out = layer(x)
    out.backward(gradient)
    weight, bias = linear.weight.detach(), linear.bias.detach()
    x_q, weight_q = back(x.detach(), FORWARD), back(weight, FORWARD)
    gradient_q = back(gradient, BACKWARD)
    torch.testing.assert_close(out.detach(), x_q @ weight_q.T + bias)
    torch.testing.assert_close(x.grad, gradient_q @ weight_q)
    torch.testing.assert_close(linear.weight.grad, gradient_q.flatten(0, 1).T @ x_q.flatten(0, 1))
    torch.testing.assert_close(linear.bias.grad, gradient.sum((0, 1)))
    assert not torch.equal(out.detach(), x.detach() @ weight.T + bias)


def test_head_router_norms_and_embedding_stay_as_they_are() -> None:
    config = ModelConfig(experts=4, shared_experts=1, tied_embeddings=False)
    model = build_on_meta(config)
    names = [name for name, _ in model.named_parameters()]
    multiply_in_fp8(model)
    replaced = {name for name, module in model.named_modules() if isinstance(module, Fp8Linear)}
    attention = {f"attention.{name}" for name in ("query", "key", "value", "output")}
    shared = {f"feed_forward.shared.{name}" for name in ("gate", "up", "down")}
    assert replaced == {f"layers.{layer}.{name}" for layer in "01" for name in attention | shared}
    assert [name for name, _ in model.named_parameters()] == names
