"""Clipping the global gradient norm, and the global loss on the same trip over the network."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.utils import get_total_norm

from drumline_trainer.parallelism.fsdp import local_gradients


@torch.no_grad()
def clip_and_reduce_loss(
    model: torch.nn.Module, local_loss: Tensor, *, mesh: DeviceMesh, max_norm: float
) -> tuple[Tensor, Tensor]:
    """Scale gradients to a global norm of at most `max_norm`.

    Every element of the gradient lives on exactly one rank, so the squared norm is the sum of the
    ranks' squared norms. One all-reduce of two scalars a step carries it together with the loss.

    Returns:
        (mean loss over the global batch, gradient norm before clipping), still on the device.
    """
    gradients = local_gradients(model)
    norm = get_total_norm(gradients) if gradients else torch.zeros_like(local_loss)
    sums = torch.stack([norm.square().double(), local_loss.detach().double()])
    dist.all_reduce(sums, group=mesh.get_group())
    total_norm = sums[0].sqrt()
    scale = (max_norm / (total_norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.dtype))
    return sums[1] / mesh.size(), total_norm
