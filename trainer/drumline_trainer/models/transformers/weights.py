"""The weights that a module of transformers begins with.

At random as the library draws them: `torch.manual_seed(seed)` and `from_config` give the same. From
a folder: tensors are read by `models.hugging_face.files`, and the library renames and joins them as
`from_pretrained` does. Either way a rank has the whole model in the host's memory for a moment, and
keeps its slices.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from drumline_contract.config import ConfigError, TrainerConfig
from drumline_contract.shapes.hugging_face import HuggingFaceError, model_folder
from drumline_trainer.models.hugging_face.files import opened
from drumline_trainer.models.transformers.module import (
    description,
    imported_library,
    new_module,
)
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice

logger = logging.getLogger(__name__)


def fill_slices(
    slices: Iterable[TensorSlice],
    module: nn.Module,
    *,
    config: TrainerConfig,
    names: Collection[str] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Fill whatever parts of the weights this rank holds.

    Args:
        slices: slices of the weights and of the buffers that belong to them.
        module: module to which the slices belong.
        config: configuration of the run.
        names: names of the module's own weights; None: all that it has are its own.
        progress: called between two weights.

    Raises:
        ConfigError: transformers cannot make or load the model, or it stores what no checkpoint
            of ours holds.
        HuggingFaceError: the folder lacks weights, or holds a pickle in their place.
    """
    whole = whole_module(config)
    _check_whole_numbers(whole, module)
    own = _names(module) if names is None else set(names)
    if apart := _learning(whole) ^ own:
        raise ConfigError(
            f"model_from: {min(apart)} is tied by config.json, and the folder holds other values of"
            " its own; set tie_word_embeddings to false there"
        )
    named: Mapping[str, Tensor] = dict(whole.named_parameters()) | dict(whole.named_buffers())
    for part in slices:
        progress()
        tensor = named[part.name].detach().reshape(part.shape)
        everything = Box(offsets=(0,) * tensor.dim(), shape=part.shape)
        part.tensor.copy_(tensor[part.box.slices_within(everything)])


def _names(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_parameters()}


def _learning(module: nn.Module) -> set[str]:
    """Return the names of the weights that the library trains."""
    return {name for name, weight in module.named_parameters() if weight.requires_grad}


def whole_module(config: TrainerConfig) -> nn.Module:
    """Return the module in host memory, in fp32, with the run's initial weights."""
    if config.model_from is not None:
        return _loaded(config)
    with torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType] - untyped in torch
        torch.manual_seed(config.seed)  # pyright: ignore[reportUnknownMemberType] - untyped in torch
        return new_module(description(config.model))


def _loaded(config: TrainerConfig) -> nn.Module:
    described = description(config.model)
    folder = model_folder(config.model_from or "")
    with opened(folder) as files:
        stored = {name: files.read(name) for name in sorted(files.names)}
    kind, report = _class_of(described), dict[str, list[str]]()
    try:
        module, report = kind.from_pretrained(
            None,
            config=described,
            state_dict=stored,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except Exception as error:
        raise ConfigError(f"model_from: {folder}: {type(error).__name__}: {error}") from error
    if missing := sorted(report["missing_keys"]):
        raise HuggingFaceError(
            f"{folder}: lacks {len(missing)} weights that {kind.__name__} has: {missing[0]}"
        )
    if unread := sorted(report["unexpected_keys"]):
        logger.warning("%s: %d tensors are not read: %s", folder, len(unread), unread[0])
    return cast("nn.Module", module)


def _class_of(described: Any) -> Any:
    """Return the class of causal models of a description."""
    known = imported_library().MODEL_FOR_CAUSAL_LM_MAPPING[type(described)]
    return cast("Any", known[0] if isinstance(known, tuple) else known)


def _check_whole_numbers(whole: nn.Module, module: nn.Module) -> None:
    """Check that tables of whole numbers are as the module is made: checkpoints hold none."""
    made, stored = dict(module.named_buffers()), whole.state_dict(keep_vars=True)
    for name, buffer in whole.named_buffers():
        is_table = name in stored and not buffer.is_floating_point()
        if is_table and not torch.equal(buffer, made[name].cpu()):
            raise ConfigError(
                f"model_from: {name} is a table of whole numbers that is not as config.json makes"
                " it, and checkpoints hold none; this model is not trained here"
            )
