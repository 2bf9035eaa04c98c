"""Attention over a sequence that several ranks share (ring attention, Liu et al. 2023).

Queries stay where they are. Keys and values travel around the ring, one rank further at each step,
and while they travel the block that is here is worked on. A block's result joins the earlier ones
with weights that follow from the logarithms of the softmax's denominators (LSE), in fp32 at least:

    LSE = log(exp LSE₁ + exp LSE₂)      out = out₁ · exp(LSE₁ - LSE) + out₂ · exp(LSE₂ - LSE)

Backward goes around a second time. The gradients of keys and values travel with their block, one
step behind it, collect every rank's share in fp32 and after the last step go home. With a causal
mask positions lie as `zigzag` says, and what is masked is neither computed nor waited for.

    size 3     step 0   step 1   step 2     whose keys and values a rank works on
    rank 0       0        2        1
    rank 1       1        0        2        gradients of block 0: ranks 0, 1, 2 add their shares,
    rank 2       2        1        0        and one more hop takes the sum from rank 2 home

Documents that are separate (`models.documents`) are attended to one by one; where the queries and
keys that meet have none in common nothing is computed. Every rank knows where in whole windows they
lie, so nothing more travels.

Only key-value heads travel: 2·B·G·S·E elements in each of size-1 hops forward, the same again
backward, and there also as many fp32 elements of gradients in each of size hops.

Shapes: B batch, H heads, G key-value heads, S positions of this rank, E size of one head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from drumline_contract.layout import Axis
from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.models.documents import DocumentIds, Documents, document_overlaps
from drumline_trainer.parallelism.context_parallel.attention_blocks import (
    AttentionBlock,
    attend_block,
    attend_block_backward,
)
from drumline_trainer.parallelism.context_parallel.zigzag import Visible, context_slices, visible


def ring_attention(
    q_BHSE: Tensor,
    k_BGSE: Tensor,
    v_BGSE: Tensor,
    *,
    group: ProcessGroup,
    causal: bool,
    documents: Documents | None = None,
) -> Tensor:
    """Return softmax(q · kᵀ / √E) · v over all ranks' keys; shape [batch, heads, sequence, E].

    With documents, those of the whole windows: over the keys and values of the same document.

    Collective over the group, forward and backward; all ranks have the same shapes. Memory beside
    inputs and output: two blocks of keys and values, and as many fp32 gradients backward.

    Args:
        q_BHSE: this rank's queries [batch, heads, sequence, head size].
        k_BGSE: this rank's keys, with G key-value heads.
        v_BGSE: this rank's values, with G key-value heads.
        group: ranks that share a sequence.
        causal: whether later positions are masked.
        documents: limits of documents in the whole windows.
    """
    ring = _Ring.of(group, causal=causal, ids=documents and documents.ids)
    return _RingAttentionFunction.apply(q_BHSE, k_BGSE, v_BGSE, ring)


def merge_(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> None:
    """Join a block's result to what is known of the same queries, in place.

    Args:
        out: output so far [..., Q, E]. Changed.
        lse: log of the summed exponents so far [..., Q]. Changed.
        block_out: output of the block [..., Q, E].
        block_lse: log of the block's summed exponents [..., Q].
    """
    # logaddexp is stable: the larger exponent is taken out of both sums.
    total = torch.logaddexp(lse, block_lse)
    out.mul_((lse - total).exp_().unsqueeze(-1))
    out.add_(block_out * (block_lse - total).exp_().unsqueeze(-1))
    lse.copy_(total)


class _RingAttentionFunction(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, ring: _Ring) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        out = torch.zeros(q.shape, dtype=wide, device=q.device)
        lse = torch.full(q.shape[:-1], float("-inf"), dtype=wide, device=q.device)
        kv = torch.stack((k, v))
        for step in range(ring.size):
            # 1. the next block of keys and values starts to travel
            hop = ring.pass_on(kv) if step + 1 < ring.size else None
            # 2. meanwhile, attention to the block that is here
            for at, block in ring.blocks(q, kv, step=step):
                block_result = attend_block(block)
                merge_(out[at.rows, :, at.queries], lse[at.rows, :, at.queries], *block_result)
            # 3. the next block is here
            kv = hop.wait() if hop else kv
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.ring = ring
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] - once_differentiable is untyped
        q, k, v, out, lse = ctx.saved_tensors
        ring, kv = ctx.ring, torch.stack((k, v))
        grad_q = torch.zeros_like(q, dtype=lse.dtype)
        grad_kv = torch.zeros_like(kv, dtype=lse.dtype)
        grad_hop = None
        for step in range(ring.size):
            # 1. the next block of keys and values starts to travel
            hop = ring.pass_on(kv) if step + 1 < ring.size else None
            # 2. meanwhile, this rank's share of the gradients of the block that is here
            shares: list[tuple[_Place, Tensor]] = []
            for at, block in ring.blocks(q, kv, step=step):
                block_q, *block_kv = attend_block_backward(
                    block,
                    grad_BHQE=grads[0][at.rows, :, at.queries],
                    out_BHQE=out[at.rows, :, at.queries],
                    lse_BHQ=lse[at.rows, :, at.queries],
                )
                grad_q[at.rows, :, at.queries] += block_q
                shares.append((at, torch.stack(block_kv)))
            # 3. the sum of the earlier ranks' shares arrives, this rank's is added, and it goes on
            grad_kv = grad_hop.wait() if grad_hop else grad_kv
            for at, share in shares:
                grad_kv[:, at.rows, :, at.keys] += share
            grad_hop = ring.pass_on(grad_kv)
            # 4. the next block is here
            kv = hop.wait() if hop else kv
        # the last hop takes the sums home, to the ranks that hold the keys and values
        grad_k, grad_v = (grad_hop.wait() if grad_hop else grad_kv).to(k.dtype)
        return grad_q.to(q.dtype), grad_k, grad_v, None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The rows, queries and keys of one block, as slices of this rank's tensors."""

    rows: slice
    queries: slice
    keys: slice


def _within(outer: slice, inner: slice) -> slice:
    return slice(outer.start + inner.start, outer.start + inner.stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ring:
    """Ranks that pass tensors to the next and get those of the previous one."""

    group: ProcessGroup
    size: int
    rank: int
    causal: bool
    ids: DocumentIds | None
    """The documents of all positions, where they are separate."""

    @classmethod
    def of(cls, group: ProcessGroup, *, causal: bool, ids: DocumentIds | None) -> _Ring:
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        return cls(group=group, size=size, rank=rank, causal=causal, ids=ids)

    def blocks(
        self, q: Tensor, kv: Tensor, *, step: int
    ) -> Iterator[tuple[_Place, AttentionBlock]]:
        """Yield the visible blocks of the keys and values that are here at a step.

        Args:
            q: [B, H, S, E], this rank's queries.
            kv: [2, B, G, S, E], keys and values of another rank.
            step: step of the ring.
        """
        origin = (self.rank - step) % self.size
        part = visible(rank=self.rank, origin=origin, length=q.shape[2], causal=self.causal)
        for at in self._places(part, origin=origin):
            k, v = kv[:, at.rows, :, at.keys]
            queries = q[at.rows, :, at.queries]
            yield at, AttentionBlock(queries=queries, keys=k, values=v, causal=part.causal)

    def _places(self, part: Visible, *, origin: int) -> Iterator[_Place]:
        if self.ids is None:
            yield _Place(rows=slice(None), queries=part.queries, keys=part.keys)
            return
        # Only pairs of one document are computed, which saves the masked rest.
        met = document_overlaps(
            self._ids(self.rank)[:, part.queries], self._ids(origin)[:, part.keys]
        )
        for overlap in met:
            yield _Place(
                rows=slice(overlap.row, overlap.row + 1),
                queries=_within(part.queries, overlap.queries),
                keys=_within(part.keys, overlap.keys),
            )

    def _ids(self, rank: int) -> DocumentIds:
        """Return the document ids [B, S] of the positions that a rank holds."""
        assert self.ids is not None  # noqa: S101 - only asked for with documents
        held = context_slices(self.ids.shape[1], size=self.size, index=rank)
        return self.ids[:, held]

    def pass_on(self, tensor: Tensor) -> _Hop:
        """Start sending; the tensor must stay as it is until the hop was waited for."""
        received = torch.empty_like(tensor)
        following, previous = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        # Both at once: a blocking send around a ring would wait for itself.
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
        """Return the previous rank's tensor, once ours has been sent too."""
        with step_part("recv", Axis.CONTEXT):
            for work in self.works:
                work.wait()
        return self.received
