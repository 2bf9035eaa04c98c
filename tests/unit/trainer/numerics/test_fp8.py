from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from drumline_contract.config import ConfigError, Fp8Scaling, ModelConfig, TrainerConfig
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.numerics.fp8 import (
    BACKWARD,
    FORWARD,
    Fp8Linear,
    Scaled,
    multiply_in_fp8,
    product,
    product_by_hardware,
    scaled,
    scaled_by_columns,
    scaled_by_rows,
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
    layer = Fp8Linear(linear, scaling=Fp8Scaling.TENSORWISE)
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
    multiply_in_fp8(model, scaling=Fp8Scaling.ROWWISE)
    replaced = {name for name, module in model.named_modules() if isinstance(module, Fp8Linear)}
    attention = {f"attention.{name}" for name in ("query", "key", "value", "output")}
    shared = {f"feed_forward.shared.{name}" for name in ("gate", "up", "down")}
    assert replaced == {f"layers.{layer}.{name}" for layer in "01" for name in attention | shared}
    assert [name for name, _ in model.named_parameters()] == names


def by_rows(x: Tensor) -> Tensor:
    """Every row quantised on its own, and turned back."""
    return torch.stack([back(row, FORWARD) for row in x])


def test_rowwise_an_outlier_costs_its_own_row_only() -> None:
    left, right = values(6, 48), values(48, 7, seed=1)
    left[2] *= 1e5
    right[:, 4] *= 1e5
    exact = left @ right
    tensorwise = product(scaled(left, FORWARD), scaled(right, FORWARD), dtype=torch.float32)
    rowwise = product(scaled_by_rows(left), scaled_by_columns(right), dtype=torch.float32)
    expected = by_rows(left) @ by_rows(right.T).T
    torch.testing.assert_close(rowwise, expected, rtol=1e-5, atol=1e-5)
    rest = [row for row in range(6) if row != 2], [column for column in range(7) if column != 4]
    error = {
        name: float((got - exact)[rest[0]][:, rest[1]].norm())
        / float(exact[rest[0]][:, rest[1]].norm())
        for name, got in (("tensorwise", tensorwise), ("rowwise", rowwise))
    }
    assert error["rowwise"] < 0.05
    assert error["tensorwise"] > 5 * error["rowwise"]


def test_a_rowwise_layer_scales_what_each_product_sums() -> None:
    linear = nn.Linear(24, 10)
    layer = Fp8Linear(linear, scaling=Fp8Scaling.ROWWISE)
    x, gradient = values(2, 3, 24).requires_grad_(), values(2, 3, 10, seed=3)
    out = layer(x)
    out.backward(gradient)
    weight, x_TI, g_TO = linear.weight.detach(), x.detach().flatten(0, 1), gradient.flatten(0, 1)
    forward = by_rows(x_TI) @ by_rows(weight).T + linear.bias.detach()
    torch.testing.assert_close(out.detach().flatten(0, 1), forward)
    of_input, of_weight = (by_rows(g_TO) @ by_rows(weight.T).T, by_rows(g_TO.T) @ by_rows(x_TI.T).T)
    assert x.grad is not None
    torch.testing.assert_close(x.grad.flatten(0, 1), of_input)
    torch.testing.assert_close(linear.weight.grad, of_weight)
    for got, exact in ((of_input, g_TO @ weight), (of_weight, g_TO.T @ x_TI)):
        assert 0 < (got - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("rowwise", [False, True])
def test_a_gpu_s_product_takes_these_layouts_and_scales(rowwise: bool) -> None:
    """Shapes alone: tensors on meta have no values."""
    left, right = values(32, 64), values(16, 64).T
    if rowwise:
        operands = scaled_by_rows(left), scaled_by_columns(right)
        assert [tuple(each.scale.shape) for each in operands] == [(32, 1), (1, 16)]
    else:
        operands = scaled(left, FORWARD), scaled(right, BACKWARD)
    a, b = (Scaled(each.values.to("meta"), each.scale.to("meta")) for each in operands)
    out = product_by_hardware(a, b, dtype=torch.bfloat16)
    assert (out.shape, out.dtype) == ((32, 16), torch.bfloat16)
    # a weight's gradient: operands that lie the other way round
    assert product_by_hardware(b.mT, a.mT, dtype=torch.bfloat16).shape == (16, 32)


def test_a_scaling_without_fp8_is_refused() -> None:
    raw = {"precision": "bf16", "fp8": True, "fp8_scaling": "rowwise"}
    config = TrainerConfig.from_dict(raw)
    assert config.fp8_scaling is Fp8Scaling.ROWWISE
    assert TrainerConfig.from_dict({**raw, "fp8_scaling": "tensorwise"}) == TrainerConfig.from_dict(
        {"precision": "bf16", "fp8": True}
    )
    with pytest.raises(ConfigError, match=r"fp8_scaling.*fp8"):
        TrainerConfig.from_dict({"fp8_scaling": "rowwise"})
