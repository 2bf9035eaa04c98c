"""Blocks of attention, and that they join to the whole: all against torch's own attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from drumline_trainer.parallelism.context_parallel.attention_blocks import (
    AttentionBlock,
    attend_block,
    attend_block_backward,
    math_block,
    math_block_backward,
)
from drumline_trainer.parallelism.context_parallel.ring_attention import merge_

KINDS = {
    "kernel": (attend_block, attend_block_backward),
    "math": (math_block, math_block_backward),
}
CLOSE = {torch.float64: 1e-13, torch.float32: 5e-6, torch.bfloat16: 6e-2}


def drawn(*, heads: int, groups: int, size: int, dtype: torch.dtype, keys: int = 9) -> list[Tensor]:
    """Queries, keys, values and the gradient of the output."""
    seeded = torch.Generator().manual_seed(heads * size)
    shapes = [(2, heads, 9, size), *[(2, groups, keys, size)] * 2, (2, heads, 9, size)]
    return [torch.randn(s, generator=seeded, dtype=torch.float64).to(dtype) for s in shapes]


def reference(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, *, causal: bool) -> list[Tensor]:
    leaves = q, k, v = [tensor.double().requires_grad_() for tensor in (q, k, v)]
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.double())]


def block(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> AttentionBlock:
    return AttentionBlock(queries=q, keys=k, values=v, causal=causal)


def worst(item: list[Tensor], expected: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(item, expected, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", [(2, 2, 8), (4, 2, 5), (3, 1, 7)])
@pytest.mark.parametrize("dtype", CLOSE)
def test_a_block_is_attention(
    kind: str, causal: bool, shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    forward, backward = KINDS[kind]
    heads, groups, size = shape
    q, k, v, grad = drawn(heads=heads, groups=groups, size=size, dtype=dtype)
    block_a = block(q, k, v, causal=causal)
    out, lse = forward(block_a)
    gradients = backward(block_a, grad_BHQE=grad, out_BHQE=out, lse_BHQ=lse)
    assert {tensor.dtype for tensor in (out, *gradients)} == {dtype}
    assert lse.dtype == torch.promote_types(dtype, torch.float32)
    assert worst([out, *gradients], reference(q, k, v, grad, causal=causal)) < CLOSE[dtype]


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_keys_join_to_all_keys_whatever_their_scores(kind: str) -> None:
    forward, backward = KINDS[kind]
    q, k, v, grad = drawn(heads=4, groups=2, size=6, dtype=torch.float64, keys=12)
    k[:, :, 4:8] *= 300  # one block has nearly all of the weight, and exp() of it overflows
    blocks = [slice(0, 4), slice(4, 8), slice(8, 12)]
    out, lse = torch.zeros_like(q), torch.full(q.shape[:-1], -torch.inf, dtype=q.dtype)
    for keys in blocks:
        merge_(out, lse, *forward(block(q, k[:, :, keys], v[:, :, keys])))
    saved = {"grad_BHQE": grad, "out_BHQE": out, "lse_BHQ": lse}
    shares = [backward(block(q, k[:, :, keys], v[:, :, keys]), **saved) for keys in blocks]
    queries, *pairs = zip(*shares, strict=True)
    results = [out, torch.stack(queries).sum(0), *[torch.cat(parts, dim=2) for parts in pairs]]
    expected = reference(q, k, v, grad, causal=False)
    for a, b in zip(results, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("dtype", "size", "kernel"),
    [
        (torch.bfloat16, 64, True),
        (torch.bfloat16, 60, False),
        (torch.float16, 256, True),
        (torch.bfloat16, 512, False),
        (torch.float32, 64, False),
    ],
)
def test_a_gpu_s_kernel_is_called_as_torch_declares_it(
    dtype: torch.dtype, size: int, kernel: bool
) -> None:
    """No GPU: tensors without storage, by the shape rules that torch has for its kernels."""
    with FakeTensorMode(), torch.profiler.profile(acc_events=True) as profile:
        q = torch.empty(1, 4, 8, size, dtype=dtype, device="cuda")
        k, v = torch.empty(2, 1, 2, 16, size, dtype=dtype, device="cuda").unbind()
        out, lse = attend_block(block(q, k, v))
        gradients = attend_block_backward(block(q, k, v), grad_BHQE=out, out_BHQE=out, lse_BHQ=lse)
    assert [t.shape for t in (out, *gradients)] == [q.shape, q.shape, k.shape, v.shape]
    assert lse.shape == q.shape[:-1]
    assert {t.device.type for t in gradients} == {"cuda"}
    names = {event.key for event in profile.key_averages()}
    assert ("aten::_scaled_dot_product_flash_attention_backward" in names) == kernel
