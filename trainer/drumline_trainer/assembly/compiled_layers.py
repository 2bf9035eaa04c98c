"""Compile one layer with torch's compiler, and run the result for all layers.

This is regional compilation. Layers differ only in their weights, which are inputs of the compiled
code, so the compile time does not grow with depth. torchtitan compiles by blocks for this reason
(https://docs.pytorch.org/tutorials/recipes/regional_compilation.html). Embedding, head, loss, the
loop over the layers and FSDP's gathers are not compiled. Hooks of a layer run around its kernels.
Names of modules and parameters do not change.

Some parts of a layer are not compiled, because their sizes vary or they exchange data with other
ranks: the ring of context parallelism, rows that travel to experts, experts without a grouped
product, and attention within documents. The compiled code ends before such a part and begins after
it. The collectives of the tensor axis, which overlap with products, also split it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._inductor.config
from torch import nn

from drumline_contract.config import Precision, TrainerConfig
from drumline_trainer.models.build import layer_modules
from drumline_trainer.models.mixture import Experts
from drumline_trainer.models.replaceable import CoreAttention
from drumline_trainer.parallelism.context_parallel.apply import RingAttention, SummedCounts
from drumline_trainer.parallelism.expert_parallel.dispatch import RemoteDispatch


def compile_layers(
    stage: nn.Module, config: TrainerConfig, *, backend: str | Callable[..., Any] = "inductor"
) -> None:
    """Compile each layer, in place. The compiler runs in the first step.

    Args:
        stage: a model or stage whose layers are not wrapped.
        config: configuration of the run; decides which modules stay eager.
        backend: backend of torch.compile.
    """
    # in this process: others would import torch each, in the memory of the pod
    torch._inductor.config.compile_threads = 1  # noqa: SLF001 - the documented place
    for layer in layer_modules(stage):
        # Modules are excluded before compilation, because the compiler follows calls from
        # `forward`.
        for module in _left_out(layer, config):
            _leave_out(module, "forward")
            if isinstance(module, RemoteDispatch):
                # Counts are exchanged in a method of its own, which the layer calls directly.
                _leave_out(module, "exchange_counts")
        for module in layer.modules():
            if isinstance(module, CoreAttention):
                # Runs of documents have other lengths in each batch, and each length would be
                # compiled anew.
                _leave_out(module, "attend_documents")
        # `dynamic=False`: sizes are constant, and kernels for fixed sizes are faster. Layers with
        # equal code share them.
        layer.forward = torch.compile(layer.forward, backend=backend, dynamic=False)


def _leave_out(module: nn.Module, name: str) -> None:
    # The attribute of the instance hides the method of the class. Names of modules stay.
    whole = torch.compiler.disable(getattr(module, name))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - untyped in torch
    setattr(module, name, whole)


def _left_out(layer: nn.Module, config: TrainerConfig) -> Iterator[nn.Module]:
    """Yield modules that cannot be compiled, as their sizes or messages follow from values."""
    kinds: list[type[nn.Module]] = [RingAttention, SummedCounts, RemoteDispatch]
    # Without bf16 experts run one by one, and their row counts follow from the router.
    if config.precision is not Precision.BF16:
        kinds.append(Experts)
    return (module for module in layer.modules() if isinstance(module, tuple(kinds)))
