"""Mixed precision: which type the forward and backward passes compute in.

Weights that are updated, sums of gradients and the optimizer's state are fp32 whatever the model
computes in: a bf16 weight of 1 cannot take in an update of 1/1000. There are two ways to compute in
a lower type:

    ddp, zero   the model's own parameters are a copy of those weights, refreshed after every
                update, and autograd accumulates the copy's gradients in fp32: 2 bytes more
    fsdp        units are copied when they are used, and copies forgotten: FSDP2 does so with what
                it gathers, `copy_on_use` where there is one rank and nothing to gather

A copy lives as long as autograd needs it: with recompute not longer than its layer's pass.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from drumline_contract.config import Precision
from drumline_trainer.models.build import layer_modules

_HEAD_WEIGHT = "head_weight"
_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def compute_type(precision: Precision) -> torch.dtype:
    """Return the type of parameters and activations in the forward and backward passes."""
    return _TYPES[precision.value]


def to_compute_type(module: nn.Module, precision: Precision) -> None:
    """Change its fp32 parameters, in place; buffers and packed weights stay what they are."""
    for parameter in module.parameters():
        if parameter.dtype is torch.float32:
            parameter.data = parameter.data.to(compute_type(precision))


def frozen_to_compute_type(module: nn.Module, precision: Precision) -> None:
    """Change the frozen fp32 parameters, in place."""
    for parameter in module.parameters():
        if not parameter.requires_grad and parameter.dtype is torch.float32:
            parameter.data = parameter.data.to(compute_type(precision))


def copy_on_use(stage: nn.Module, precision: Precision) -> None:
    """Let each layer, and the root, compute with copies made in its forward pass.

    The fp32 parameters are still the ones that are updated, and gradients reach them as fp32 sums.
    A tied embedding has a copy for each of its two uses, because sums within one copy would have
    its type.
    """
    layers = layer_modules(stage)
    inside = {parameter for layer in layers for parameter in layer.parameters()}
    for unit in (*layers, stage):
        places = [
            (module, name)
            for module in unit.modules()
            for name, parameter in module.named_parameters(recurse=False)
            if parameter.dtype is torch.float32
            and parameter.requires_grad
            and (unit is not stage or parameter not in inside)
        ]
        head = getattr(stage, "embedding", None) if unit is stage and _is_tied(stage) else None
        _Copies(unit, places, dtype=compute_type(precision), head=head)


def _is_tied(stage: nn.Module) -> bool:
    """Return whether a stage is a whole model that uses its embedding as its head."""
    parts = (getattr(stage, name, None) for name in ("embedding", "norm"))
    return all(part is not None for part in parts) and getattr(stage, "output", None) is None


class _Copies:
    """Low-precision copies that replace a unit's parameters during its forward pass."""

    def __init__(
        self,
        unit: nn.Module,
        places: list[tuple[nn.Module, str]],
        *,
        dtype: torch.dtype,
        head: nn.Module | None,
    ) -> None:
        self._head = head
        self._places, self._dtype = places, dtype
        self._originals: list[nn.Parameter | None] = []
        unit.register_forward_pre_hook(self._put)
        unit.register_forward_hook(self._take_back, always_call=True)

    def _put(self, *_: Any) -> None:
        self._originals = [module._parameters[name] for module, name in self._places]  # noqa: SLF001 - as torch.func.functional_call does # pyright: ignore[reportPrivateUsage] - as functional_call does
        for (module, name), original in zip(self._places, self._originals, strict=True):
            if original is not None:
                # as torch.func.functional_call does; autograd goes on to the original
                copies = cast("dict[str, Tensor | None]", module._parameters)  # noqa: SLF001 - as torch.func.functional_call does # pyright: ignore[reportPrivateUsage] - as functional_call does
                copies[name] = original.to(self._dtype)
                if module is self._head:
                    setattr(module, _HEAD_WEIGHT, original.to(self._dtype))

    def _take_back(self, *_: Any) -> None:
        # at once after a forward pass, also one that ended early: recomputing does
        for (module, name), original in zip(self._places, self._originals, strict=True):
            module._parameters[name] = original  # noqa: SLF001 - as torch.func.functional_call does # pyright: ignore[reportPrivateUsage] - as functional_call does
        self._originals = []
        if self._head is not None:
            setattr(self._head, _HEAD_WEIGHT, None)


def accumulate_in_fp32(module: nn.Module) -> None:
    """Let the gradients of low-precision parameters be fp32. For parameters with storage."""
    for parameter in module.parameters():
        if parameter.requires_grad and parameter.dtype is not torch.float32:
            parameter.grad_dtype = torch.float32
