"""A checkpoint of a module of transformers as a folder in the model's own names."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from drumline_contract.buckets.path import AnyPath, make_folder, remove_file
from drumline_contract.config import ModelConfig
from drumline_contract.shapes.hugging_face import CONFIG_FILE
from drumline_trainer.models.hugging_face.files import copy_companions, write_json, write_tensors
from drumline_trainer.models.transformers.module import (
    build_module,
    imported_library,
    state_names,
)


def export_module(
    weights: Mapping[str, Tensor],
    config: ModelConfig,
    folder: AnyPath,
    *,
    dtype: torch.dtype = torch.float32,
    max_file_bytes: int = 5_000_000_000,
    like: AnyPath | None = None,
) -> None:
    """Write a folder that `AutoModelForCausalLM.from_pretrained` loads.

    The weights pass through the host's memory as a whole, as the library splits and renames them.
    config.json is written last: a folder without it is an export that did not finish.

    Args:
        weights: weights by the module's names. Each is read once.
        config: configuration of the model.
        folder: made where it does not exist.
        dtype: dtype of the tensors in the files.
        max_file_bytes: a larger model becomes several files and an index.
        like: the folder that the model came from: tokenizer, chat template and generation settings
            are taken over.

    Raises:
        ConfigError: transformers is missing, or cannot make the model.
    """
    library = imported_library()
    loading: Any = importlib.import_module("transformers.core_model_loading")
    module = build_module(config)
    state = {
        name: weights[name].detach().cpu().to(dtype).reshape(own.shape)
        for name, own in state_names(module).items()
    }
    tensors: dict[str, Tensor] = loading.revert_weight_conversion(module, state)
    make_folder(folder)
    remove_file(folder / CONFIG_FILE)
    write_tensors(
        folder,
        {name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()},
        lambda name: tensors[name].clone().contiguous(),
        max_file_bytes=max_file_bytes,
    )
    if like is not None:
        copy_companions(like, folder)
    described: dict[str, Any] = json.loads(config.config_json)
    described |= {
        "architectures": [type(module).__name__],
        "dtype": str(dtype).removeprefix("torch."),
        "transformers_version": library.__version__,
    }
    write_json(folder / CONFIG_FILE, described)
