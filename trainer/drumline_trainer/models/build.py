"""The model of a configuration, without storage, whatever its family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from drumline_contract.config import Family, ModelConfig
from drumline_trainer.models.gpt2 import GPT2
from drumline_trainer.models.llama import Llama
from drumline_trainer.models.transformers.module import CausalModule, build_module, units_of
from drumline_trainer.models.vit import ViT


def build_on_meta(config: ModelConfig) -> nn.Module:
    """Build a model without storage.

    Cut it, then fill it with `models.initialize` or a checkpoint.
    """
    # Code of the library transformers builds its own modules, under its own handling of meta.
    if config.family is Family.TRANSFORMERS:
        return build_module(config)
    # Meta tensors have shapes only: a model of any size is built in milliseconds and without
    # memory.
    with torch.device("meta"), _WithoutValues():
        match config.family:
            case Family.LLAMA:
                return Llama(config)
            case Family.GPT2:
                return GPT2(config)
            case Family.VIT:
                return ViT(config)


def layer_modules(model: nn.Module) -> list[nn.Module]:
    """Return the layers of this model or stage, in order. They are the units of sharding.

    Raises:
        TypeError: the model has no ModuleDict of layers.
    """
    if isinstance(model, CausalModule):
        return units_of(model)
    layers = model.layers
    if not isinstance(layers, nn.ModuleDict):
        raise TypeError("a model's layers are a ModuleDict")
    return list(layers.values())


class _WithoutValues(TorchFunctionMode):
    """Leaves out what torch's modules do to their parameters when they are made.

    Tensors on meta have no values, and the first random one would import torch's compiler, which
    takes as long as torch itself.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        kwargs = kwargs or {}
        # Every function of `torch.nn.init` takes the tensor first and returns it.
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)
