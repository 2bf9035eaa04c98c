"""Attention of some queries to some keys, with what it takes to join it to other keys later.

A block's result comes with the logarithm of its softmax's denominator (LSE). With the LSE over all
keys in place of the block's own, the backward of a block gives exactly the block's share of the
whole gradient: that is what flash attention's backward does anyway (Dao et al. 2022).

The kernels are torch's own, under names that are the same from 2.11 to 2.15: on a CPU one that
takes every type and head size, on a GPU one for 16-bit types and head sizes that divide by 8.
Everything else is done by two matrix products. The GPU's branch has only been run on tensors
without storage, for its signatures and shapes, never on a GPU.

Shapes: B batch, H heads, G key-value heads, R = H / G queries of each, Q queries, K keys, E size of
one head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

# ruff: disable[SLF001] the kernels have no other names
_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_CPU_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_GPU = torch.ops.aten._scaled_dot_product_flash_attention
_GPU_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_backward
# ruff: enable[SLF001]
_GPU_LARGEST_HEAD = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBlock:
    """Queries, and the keys and values that they look at."""

    queries: Tensor
    """B H Q E."""
    keys: Tensor
    """B G K E."""
    values: Tensor
    """B G K E."""
    causal: bool
    """True if query i sees only the keys 0 to i. There are then as many queries as keys."""

    @property
    def wide(self) -> torch.dtype:
        """The type of sums: fp32, or fp64 where the tensors are."""
        return torch.promote_types(self.queries.dtype, torch.float32)


Gradients = tuple[Tensor, Tensor, Tensor]
"""Gradients of queries [B, H, Q, E], keys and values [B, G, K, E], in their types."""


def attend_block(block: AttentionBlock) -> tuple[Tensor, Tensor]:
    """Return outputs [B, H, Q, E] in the queries' type and LSE [B, H, Q] in the wide type."""
    tensors = (block.queries, block.keys, block.values)
    if block.queries.device.type == "cpu":
        return _CPU(*tensors, 0.0, block.causal)
    # Flash attention returns the LSE that joins blocks. Other kernels do not.
    if _gpu_takes(block.queries):
        out_BHQE, lse_BHQ, *_ = _GPU(*tensors, 0.0, block.causal)
        return out_BHQE, lse_BHQ
    return math_block(block)


def attend_block_backward(
    block: AttentionBlock, *, grad_BHQE: Tensor, out_BHQE: Tensor, lse_BHQ: Tensor
) -> Gradients:
    """Return the block's share of the gradients.

    Args:
        block: queries, keys and values.
        grad_BHQE: gradient of the output.
        out_BHQE: output over all keys.
        lse_BHQ: LSE over all keys.
    """
    tensors = (grad_BHQE, block.queries, block.keys, block.values, out_BHQE)
    if block.queries.device.type == "cpu":
        return _CPU_BACKWARD(*tensors, lse_BHQ, 0.0, block.causal)
    if _gpu_takes(block.queries):
        lengths = (block.queries.shape[2], block.keys.shape[2])
        seed = torch.zeros(2, dtype=torch.uint64, device=grad_BHQE.device)  # of dropout: not read
        dense = (None, None, *lengths, 0.0, block.causal, seed, seed[0])
        return _GPU_BACKWARD(*tensors, lse_BHQ.contiguous(), *dense)  # it assumes contiguous
    return math_block_backward(block, grad_BHQE=grad_BHQE, out_BHQE=out_BHQE, lse_BHQ=lse_BHQ)


def math_block(block: AttentionBlock) -> tuple[Tensor, Tensor]:
    """Compute `attend_block` with all scores in memory."""
    scores_BGRQK = _scores(block)
    lse_BGRQ = scores_BGRQK.logsumexp(-1)
    weights_BGRQK = (scores_BGRQK - lse_BGRQ.unsqueeze(-1)).exp()
    out_BGRQE = weights_BGRQK @ block.values.to(block.wide).unsqueeze(2)
    return out_BGRQE.flatten(1, 2).to(block.queries.dtype), lse_BGRQ.flatten(1, 2)


def math_block_backward(
    block: AttentionBlock, *, grad_BHQE: Tensor, out_BHQE: Tensor, lse_BHQ: Tensor
) -> Gradients:
    """Compute `attend_block_backward` with all scores in memory.

    Args:
        block: queries, keys, values and mask.
        grad_BHQE: gradient of the output.
        out_BHQE: output of the forward pass.
        lse_BHQ: log of the summed exponents, over all blocks.
    """
    groups, wide = block.keys.shape[1], block.wide
    k, v = (tensor.to(wide).unsqueeze(2) for tensor in (block.keys, block.values))
    q, grad, out = (
        cast("Tensor", tensor.to(wide).unflatten(1, (groups, -1)))
        for tensor in (block.queries, grad_BHQE, out_BHQE)
    )
    lse_BGRQ = cast("Tensor", lse_BHQ.unflatten(1, (groups, -1)))
    # The LSE over all keys gives this block's share of the softmax over all keys.
    weights = (_scores(block) - lse_BGRQ.unsqueeze(-1)).exp()
    # Gradient of a softmax: the row sum of (grad · out) is subtracted.
    of_weights = grad @ v.transpose(-1, -2) - (grad * out).sum(-1, keepdim=True)
    of_scores = weights * of_weights * q.shape[-1] ** -0.5
    grad_q = (of_scores @ k).flatten(1, 2)
    # Queries of a group share keys and values, so their gradients are summed.
    grad_k = (of_scores.transpose(-1, -2) @ q).sum(2)
    grad_v = (weights.transpose(-1, -2) @ grad).sum(2)
    dtype = block.queries.dtype
    return grad_q.to(dtype), grad_k.to(dtype), grad_v.to(dtype)


def _scores(block: AttentionBlock) -> Tensor:
    """Return the scaled products q · kᵀ / √E [B, G, R, Q, K], -inf for masked keys."""
    groups = block.keys.shape[1]
    q_BGRQE = cast("Tensor", block.queries.to(block.wide).unflatten(1, (groups, -1)))
    k_BG1KE = block.keys.to(block.wide).unsqueeze(2)
    scores_BGRQK = q_BGRQE @ k_BG1KE.transpose(-1, -2) * q_BGRQE.shape[-1] ** -0.5
    if not block.causal:
        return scores_BGRQK
    later_QK = torch.ones(scores_BGRQK.shape[-2:], dtype=torch.bool, device=q_BGRQE.device).triu(1)
    return scores_BGRQK.masked_fill(later_QK, float("-inf"))


def _gpu_takes(queries: Tensor) -> bool:
    head_size = queries.shape[-1]
    return (
        queries.device.type == "cuda"
        and queries.dtype in (torch.bfloat16, torch.float16)
        and head_size % 8 == 0
        and head_size <= _GPU_LARGEST_HEAD
    )
