"""Attention over a sequence that several ranks share (ring attention, Liu et al. 2023).

Queries stay where they are. Keys and values travel around the ring, one rank further at each step,
and while they travel the block that is here is worked on. A block's result joins the earlier ones
with weights that follow from the logarithms of the softmax's denominators (LSE), in fp32 at least:

    LSE = log(exp LSE₁ + exp LSE₂)      out = out₁ · exp(LSE₁ - LSE) + out₂ · exp(LSE₂ - LSE)

Backward goes around a second time. The gradients of keys and values travel with their block, one
step behind it, collect every rank's share in fp32 and after the last step go home. With a causal
mask positions lie as `zigzag` says, and what is masked is neither computed nor waited for.

Only key-value heads travel: 2·B·G·S·E elements in each of size-1 hops forward, the same again
backward, and there also as many fp32 elements of gradients in each of size hops.

Shapes: B batch, H heads, G key-value heads, S positions of this rank, E size of one head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from drumline_trainer.parallelism.attention_blocks import Block, attend_block, attend_block_backward
from drumline_trainer.parallelism.zigzag import visible


def ring_attention(
    q_BHSE: Tensor, k_BGSE: Tensor, v_BGSE: Tensor, *, group: ProcessGroup, causal: bool
) -> Tensor:
    """softmax(q · kᵀ / √E) · v over the keys and values of all ranks; shape B H S E.

    Collective over the group, forward and backward; all ranks have the same shapes. Memory beside
    inputs and output: two blocks of keys and values, and as many fp32 gradients backward.
    """
    return _RingAttention.apply(q_BHSE, k_BGSE, v_BGSE, _Ring.of(group, causal=causal))


def merge_(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> None:
    """Join a block's result to what is known of the same queries, in place."""
    total = torch.logaddexp(lse, block_lse)
    out.mul_((lse - total).exp_().unsqueeze(-1))
    out.add_(block_out * (block_lse - total).exp_().unsqueeze(-1))
    lse.copy_(total)


class _RingAttention(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, ring: _Ring) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        out = torch.zeros(q.shape, dtype=wide, device=q.device)
        lse = torch.full(q.shape[:-1], float("-inf"), dtype=wide, device=q.device)
        kv = torch.stack((k, v))
        for step in range(ring.size):
            hop = ring.pass_on(kv) if step + 1 < ring.size else None
            queries, _, block = ring.block(q, kv, step=step)
            merge_(out[:, :, queries], lse[:, :, queries], *attend_block(block))
            kv = hop.wait() if hop else kv
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.ring = ring
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, out, lse = ctx.saved_tensors
        ring, kv = ctx.ring, torch.stack((k, v))
        grad_q = torch.zeros_like(q, dtype=lse.dtype)
        grad_kv = torch.zeros_like(kv, dtype=lse.dtype)
        grad_hop = None
        for step in range(ring.size):
            hop = ring.pass_on(kv) if step + 1 < ring.size else None
            queries, keys, block = ring.block(q, kv, step=step)
            block_q, *block_kv = attend_block_backward(
                block,
                grad_BHQE=grads[0][:, :, queries],
                out_BHQE=out[:, :, queries],
                lse_BHQ=lse[:, :, queries],
            )
            grad_q[:, :, queries] += block_q
            grad_kv = grad_hop.wait() if grad_hop else grad_kv
            grad_kv[..., keys, :] += torch.stack(block_kv)
            grad_hop = ring.pass_on(grad_kv)
            kv = hop.wait() if hop else kv
        grad_k, grad_v = (grad_hop.wait() if grad_hop else grad_kv).to(k.dtype)
        return grad_q.to(q.dtype), grad_k, grad_v, None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ring:
    """Ranks that pass tensors to the next and get those of the previous one."""

    group: ProcessGroup
    size: int
    rank: int
    causal: bool

    @classmethod
    def of(cls, group: ProcessGroup, *, causal: bool) -> _Ring:
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        return cls(group=group, size=size, rank=rank, causal=causal)

    def block(self, q: Tensor, kv: Tensor, *, step: int) -> tuple[slice, slice, Block]:
        """Of the keys and values that are here at a step what our queries see, and where it is."""
        origin = (self.rank - step) % self.size
        part = visible(rank=self.rank, origin=origin, length=q.shape[2], causal=self.causal)
        k, v = kv[..., part.keys, :]
        block = Block(queries=q[:, :, part.queries], keys=k, values=v, causal=part.causal)
        return part.queries, part.keys, block

    def pass_on(self, tensor: Tensor) -> _Hop:
        """Start sending; the tensor must stay as it is until the hop was waited for."""
        received = torch.empty_like(tensor)
        following, previous = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, tensor, group=self.group, group_peer=following),
                dist.P2POp(dist.irecv, received, group=self.group, group_peer=previous),
            ]
        )
        return _Hop(works=works, sent=tensor, received=received)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hop:
    """A tensor that is on its way, and the one that is coming."""

    works: list[dist.Work]
    sent: Tensor
    received: Tensor

    def wait(self) -> Tensor:
        """The previous rank's tensor, once ours has left too."""
        for work in self.works:
            work.wait()
        return self.received
