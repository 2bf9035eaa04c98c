"""Mixed precision: which type the forward and backward passes compute in.

Weights that are updated, sums of gradients and the optimizer's state are fp32 whatever the model
computes in: a bf16 weight of 1 cannot take in an update of 1/1000. In a lower type the model's own
parameters are a copy of those weights, made anew after every update, and autograd accumulates the
copy's gradients in fp32. FSDP does the same with the copies that it gathers.
"""

from __future__ import annotations

import torch
from torch import nn

from drumline_trainer.config import Precision

_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def compute_type(precision: Precision) -> torch.dtype:
    """Of parameters and activations in the forward and backward passes."""
    return _TYPES[precision.value]


def to_compute_type(module: nn.Module, precision: Precision) -> None:
    """Change its fp32 parameters, in place; buffers and packed weights stay what they are."""
    for parameter in module.parameters():
        if parameter.dtype is torch.float32:
            parameter.data = parameter.data.to(compute_type(precision))


def frozen_to_compute_type(module: nn.Module, precision: Precision) -> None:
    """Change the fp32 parameters that nobody updates, in place."""
    for parameter in module.parameters():
        if not parameter.requires_grad and parameter.dtype is torch.float32:
            parameter.data = parameter.data.to(compute_type(precision))


def accumulate_in_fp32(module: nn.Module) -> None:
    """Let the gradients of low-precision parameters be fp32. For parameters with storage."""
    for parameter in module.parameters():
        if parameter.requires_grad and parameter.dtype is not torch.float32:
            parameter.grad_dtype = torch.float32
