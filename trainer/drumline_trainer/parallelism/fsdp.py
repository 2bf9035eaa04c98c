"""Fully sharded data parallelism (FSDP2): every layer and the root are one unit each.

Weights, gradients and optimizer state stay fp32 and sharded by rows (dimension 0) over the mesh
axis `dp_shard`; a unit is gathered for its forward and backward only. With bf16 the gathered copy
and the activations are bf16, gradients are reduced in fp32. Gradients are averaged over the ranks,
so equal local batches give the gradient of the global mean.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from drumline_trainer.config import Precision
from drumline_trainer.models.llama import Llama, layer_modules
from drumline_trainer.parallelism.shards import local_shard


def shard_model(model: Llama, *, mesh: DeviceMesh, precision: Precision) -> None:
    """Shard in place: each decoder layer, then what is left (embedding, norm, head) at the root."""
    policy = _mixed_precision(precision)
    for layer in layer_modules(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def reduce_gradients(model: Llama, *, now: bool) -> None:
    """Whether the next backward sums its gradients over the ranks, or keeps them for a later one.

    Gradients that are kept are those of whole units: memory for one unsharded copy.
    """
    cast("FSDPModule", model).set_requires_gradient_sync(now)


def local_gradients(model: nn.Module) -> list[Tensor]:
    """This rank's gradient shards that have elements."""
    shards = [local_shard(p.grad) for p in model.parameters() if p.grad is not None]
    return [shard for shard in shards if shard.numel()]


def _mixed_precision(precision: Precision) -> MixedPrecisionPolicy:
    match precision:
        case Precision.FP32:
            return MixedPrecisionPolicy()
        case Precision.BF16:
            return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
