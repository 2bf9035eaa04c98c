"""Recompute: forget activations in the forward pass and compute them again for the backward.

selective  results of matrix products and of attention are kept, the cheap rest is computed again
           (Korthikanti et al. 2022)
full       of each layer only its input is kept; every layer runs forward twice
blocks     of each run of k layers only the first one's input is kept. A run that is computed again
           keeps the inputs of its layers, and each layer is computed once more when its turn comes:
           L / k + k inputs and one layer's activations in all, least with k = sqrt(L) (Chen et al.
           2016, "Training deep nets with sublinear memory cost"). Layers run forward 3 - 1/k times

Without that second level a run's k layers would have all their activations at once, and of
transformers, whose layers keep some twenty times their input, that is more than `full` keeps.

Works on whatever a layer has become: layers that tensor parallelism cut repeat their collectives,
in the same order on all ranks; FSDP gathers their weights for both passes. Same numbers bit for
bit: dropout takes the same random numbers again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    _CachedTorchDispatchMode,  # pyright: ignore[reportPrivateUsage] - has no public base
    checkpoint,  # pyright: ignore[reportUnknownVariableType] - partly untyped in torch
    create_selective_checkpoint_contexts,  # pyright: ignore[reportUnknownVariableType] - untyped in torch
)

from drumline_contract.config import ConfigError, Recompute
from drumline_trainer.models.build import layer_modules
from drumline_trainer.models.replaceable import LayerLoop
from drumline_trainer.models.transformers.module import CausalModule

_KEPT = frozenset(
    {
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten.bmm.default,
        torch.ops.aten.baddbmm.default,
        torch.ops.aten._grouped_mm.default,  # noqa: SLF001 - of experts; the only names
        torch.ops.aten._scaled_mm.default,  # noqa: SLF001 - in fp8; the only names
        torch.ops.aten._scaled_dot_product_flash_attention.default,  # noqa: SLF001 - the only names
        torch.ops.aten._scaled_dot_product_efficient_attention.default,  # noqa: SLF001 - the only names
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,  # noqa: SLF001 - the only names
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,  # noqa: SLF001 - the only names
    }
)
"""Operations that are slow relative to the memory of their result."""
_KEPT_BY_NAME = frozenset({"torch_attn::_varlen_attn"})
"""Further such operations, which exist only after the import of torch.compile, which takes 2 s."""


def recompute(model: nn.Module, *, mode: Recompute, every: int | None) -> None:
    """Replace, in place, the way a model or stage goes through its layers.

    Args:
        model: one of `models`, before or after its layers were cut.
        mode: what is kept.
        every: layers of a run, for blocks; None: the square root of this stage's layers.
    """
    # Modules of transformers own their loop, so they recompute by their own switch.
    if isinstance(model, CausalModule):
        _recompute_by_itself(model, mode=mode)
        return
    match mode:
        case Recompute.NONE:
            return
        case Recompute.FULL:
            model.layer_loop = RecomputedLayers(length=1)
        case Recompute.BLOCKS:
            layers = len(layer_modules(model))
            # sqrt(L) minimizes L / k + k (Chen et al. 2016).
            length = every or math.isqrt(layers)
            # Runs of one layer need no second level.
            each = LayerLoop() if length == 1 else RecomputedLayers(length=1)
            model.layer_loop = RecomputedLayers(length=length, inner=each)
        case Recompute.SELECTIVE:
            model.layer_loop = RecomputedLayers(length=1, context=_keep_products)


def _recompute_by_itself(module: nn.Module, *, mode: Recompute) -> None:
    """Make a transformers module recompute its own layers."""
    if mode is Recompute.NONE:
        return
    if not getattr(module, "supports_gradient_checkpointing", False):
        raise ConfigError(
            f"memory.recompute: {type(module).__name__} does not recompute layers; set it to none"
        )
    # The reentrant variant ignores hooks of saved tensors, which offloading uses.
    options: dict[str, Any] = {"use_reentrant": False}
    if mode is Recompute.SELECTIVE:
        options["context_fn"] = _keep_products
    cast("Any", module).gradient_checkpointing_enable(options)


class RecomputedLayers(nn.Module):
    """`models.seams.LayerLoop`, one run of layers after the other, each forgotten once passed.

    Args:
        length: layers of a run that is recomputed together.
        inner: loop inside a run. None: one layer after the other.
        context: context of the recomputation.
    """

    def __init__(
        self,
        *,
        length: int,
        inner: nn.Module | None = None,
        context: Callable[[], Any] | None = None,
    ) -> None:
        """Pass runs of `length` layers through `inner`, None for one layer after the other."""
        super().__init__()
        self.length = length
        self.inner = inner or LayerLoop()
        self.context = context

    def forward(self, layers: Iterable[nn.Module], x_BSD: Tensor, *rest: Any) -> Tensor:
        """Return the last layer's output [B, S, D].

        Args:
            layers: layers to pass, in order.
            x_BSD: hidden states [batch, sequence, hidden].
            *rest: arguments of every layer.
        """
        remaining = iter(layers)
        # Non-reentrant checkpoints keep the random state, so dropout repeats its numbers.
        options: dict[str, Any] = {"use_reentrant": False}
        if self.context is not None:
            options["context_fn"] = self.context
        while run := tuple(itertools.islice(remaining, self.length)):
            x_BSD = cast("Tensor", checkpoint(self.inner, run, x_BSD, *rest, **options))
        return x_BSD


def _keep_products() -> Any:
    keep, reuse = create_selective_checkpoint_contexts(_policy)
    # torch's default mode raises if the second pass runs other operations than the first.
    return keep, _Reuse(_policy, reuse.storage, allow_cache_entry_mutation=False)


class _Reuse(_CachedTorchDispatchMode):
    """torch's, that lets other operations be than in the first pass, but for what was kept.

    FSDP may have to gather experts again that were whole in the first pass.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _is_kept(func):
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - untyped in torch


def _policy(_: Any, operation: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    if _is_kept(operation):
        return CheckpointPolicy.MUST_SAVE
    # PREFER, not MUST: torch.compile may still keep a result if that costs less.
    return CheckpointPolicy.PREFER_RECOMPUTE


def _is_kept(operation: Any) -> bool:
    return operation in _KEPT or operation.name() in _KEPT_BY_NAME
