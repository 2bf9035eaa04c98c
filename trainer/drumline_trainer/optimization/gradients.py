"""Clipping the global gradient norm; loss and votes on the same trip over the network."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.utils import get_total_norm

from drumline_trainer.parallelism.fsdp import local_gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What all ranks know of a step, bit for bit the same."""

    loss: float
    """Mean over the global batch."""
    gradient_norm: float
    """Before clipping."""
    votes: int
    """How many ranks voted for saving now."""


@torch.no_grad()
def clip_and_total(
    model: torch.nn.Module,
    local_loss: Tensor,
    *,
    mesh: DeviceMesh,
    max_norm: float,
    vote: bool = False,
) -> Totals:
    """Scale gradients to a global norm of at most `max_norm`.

    Every element of the gradient lives on exactly one rank, so the squared norm is the sum of the
    ranks' squared norms. One all-reduce of three scalars a step carries it together with the loss
    and the votes. Waits for the device: all ranks act on the votes before the next step.
    """
    gradients = local_gradients(model)
    norm = get_total_norm(gradients) if gradients else torch.zeros_like(local_loss)
    own_vote = torch.full_like(norm, float(vote), dtype=torch.float64)
    sums = torch.stack([norm.square().double(), local_loss.detach().double(), own_vote])
    dist.all_reduce(sums, group=mesh.get_group())
    total_norm = sums[0].sqrt()
    scale = (max_norm / (total_norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.dtype))
    squared_norm, loss, votes = sums.tolist()
    return Totals(
        loss=loss / mesh.size(), gradient_norm=math.sqrt(squared_norm), votes=round(votes)
    )
