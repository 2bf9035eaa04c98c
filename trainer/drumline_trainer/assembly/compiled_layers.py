"""Layers as torch's compiler fuses them: one layer is compiled, and all run what came out.

Regional compilation: layers differ in their weights alone, and those are inputs of what is
compiled, so the time does not grow with depth (torchtitan compiles by blocks for the same reason,
https://docs.pytorch.org/tutorials/recipes/regional_compilation.html). Embedding, head and loss, the
way through the layers and FSDP's gathers stay outside: hooks of a layer run around its kernels.
Names of modules and parameters stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.config
from torch import nn

from drumline_trainer.models.build import layer_modules


def compile_layers(stage: nn.Module, *, backend: str | Callable[..., Any] = "inductor") -> None:
    """Let each layer run compiled, in place; the compiler works in the first step.

    Args:
        stage: a model or stage, whose layers were cut and wrapped by nothing since.
        backend: of torch's compiler.
    """
    # in this process: others would import torch each, in the memory of the pod
    torch._inductor.config.compile_threads = 1  # noqa: SLF001 - the documented place
    for layer in layer_modules(stage):
        layer.forward = torch.compile(layer.forward, backend=backend, dynamic=False)
