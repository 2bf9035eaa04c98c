"""Clipping the global gradient norm; loss and votes on the same trip over the network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from drumline_contract.layout import Axis
from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """Totals of a step, with the same bits on all ranks."""

    loss: float
    """Mean over the global batch."""
    gradient_norm: float
    """Before clipping."""
    votes: int
    """The sum of all ranks' votes."""
    non_finite: int = 0
    """Number of slices with an infinite or NaN gradient, over all ranks."""
    counted: tuple[float, ...] = ()
    """Sums over the ranks of figures beside the loss."""

    @property
    def finite(self) -> bool:
        """True if weights may be updated."""
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)


@torch.no_grad()
def clip_gradients(
    slices: Sequence[TensorSlice],
    gradients: Sequence[Tensor],
    *,
    loss: Tensor,
    world: World,
    max_norm: float | None,
    vote: int = 0,
    scale: float = 1.0,
    counted: Tensor | None = None,
) -> StepTotals:
    """Scale the gradients, in place, to a global norm of at most `max_norm`; None: not down.

    What several ranks hold is counted once: squares are divided by the slice's copies before all
    ranks sum them. The loss and the votes travel in the same all-reduce, four numbers a step and
    what is counted. Waits for the device: all ranks act on the totals before the next step.

    Args:
        slices: what the gradients are of.
        gradients: summed over the ranks, one for each slice.
        loss: this rank's part of the loss of the global batch; 0 on ranks without the last stage.
            The ranks of a tensor group all have the same part.
        world: the ranks.
        max_norm: maximum norm of the gradient that is left.
        vote: what this rank has to say to all, to be summed (`TieredCheckpointer.vote`).
        scale: what the loss was multiplied by before its backward pass, and gradients with it;
            they and the totals are rid of it.
        counted: of this rank, to be summed as the loss is; as many numbers on each rank.
    """
    # Phase 1: squares of the local norms. Empty slices have no norm.
    held = [(p.copies, g) for p, g in zip(slices, gradients, strict=True) if g.numel()]
    norms = _norms([gradient for _, gradient in held], like=loss).to(loss.device)
    # fp64 sums: fp32 squares of many slices would overflow or lose the small ones.
    copies = torch.tensor([float(n) for n, _ in held], dtype=torch.float64)
    copies = copies.to(norms.device, non_blocking=True)
    own = [
        (norms.square() / copies).sum(),
        # All ranks of a tensor group report the same loss, so the sum would count it once for each
        # rank.
        loss.detach().double() / (world.size(Axis.TENSOR) * scale),
        # fp64 carries votes and counts exactly up to 2^53.
        torch.full_like(loss, float(vote), dtype=torch.float64),
        # A number less itself is 0, unless it is infinite or NaN: three kernels instead of seven.
        (norms - norms).ne(0).sum(dtype=torch.float64),
    ]
    # Gradients carry the loss scale, so their squares carry its square.
    if scale != 1:
        own[0] = own[0] / scale**2
    # Phase 2: one all-reduce. Latency dominates at this size, so extra collectives would cost more.
    sums = torch.stack(own)
    if counted is not None:
        sums = torch.cat((sums, counted.to(sums) / (world.size(Axis.TENSOR) * scale)))
    if world.layout.world_size > 1:
        with step_part("all_reduce", "world"):  # where the slowest rank is waited for
            dist.all_reduce(sums, group=world.everyone)
    # Phase 3: the same formula as torch.nn.utils.clip_grad_norm_, with its 1e-6 against a zero
    # norm.
    kept = 1.0 if max_norm is None else (max_norm / (sums[0].sqrt() + 1e-6)).clamp(max=1.0)
    # Unscaling and clipping are one multiplication, so gradients are read and written once.
    if held and (max_norm is not None or scale != 1):
        factor = torch.as_tensor(kept / scale, dtype=torch.float32)
        factor = factor.to(held[0][1].device)  # host memory, where weights are offloaded
        torch._foreach_mul_([g for _, g in held], factor)  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage] - the fused kernel
    # tolist waits for the device: the caller branches on the totals.
    values: list[float] = sums.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - torch says only list
    squared_norm, total_loss, votes, non_finite, *counts = values
    return StepTotals(
        loss=total_loss,
        gradient_norm=math.sqrt(squared_norm),
        votes=round(votes),
        non_finite=round(non_finite),
        counted=tuple(counts),
    )


def _norms(gradients: list[Tensor], *, like: Tensor) -> Tensor:
    """Return the norm of each gradient in fp64 [n]."""
    if not gradients:
        return like.new_zeros(0, dtype=torch.float64)
    norms = torch._foreach_norm(gradients)  # noqa: SLF001 - the fused kernel # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage] - the fused kernel
    return torch.stack(norms).double()
