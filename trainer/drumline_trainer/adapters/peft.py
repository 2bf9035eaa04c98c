"""Adapters as the library peft lays them out: adapter_config.json and adapter_model.safetensors.

    base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight    rank x inputs
    base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight    outputs x rank

`PeftModel.from_pretrained(base, folder)` and inference servers put them beside the base, which is a
hundred times their size. Names are those of the base's own tensors in its folder. Where that keeps
several projections in one tensor (Phi-3, GPT-2) there is no adapter for each: those are merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from safetensors import SafetensorError
from torch import Tensor

from drumline_contract.buckets.path import AnyPath, make_folder
from drumline_contract.config import ConfigError, LoraConfig, ModelConfig
from drumline_contract.shapes.hugging_face import HuggingFaceError, read_json
from drumline_trainer.adapters.lora import A, B
from drumline_trainer.models.hugging_face import projection_names
from drumline_trainer.models.hugging_face.files import (
    copy_companions,
    write_json,
    write_tensor_file,
)
from drumline_trainer.tensor_files.ranges import open_tensor_file

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"
_PREFIX: Final = "base_model.model."
_PARTS: Final = {A: "lora_A", B: "lora_B"}
_UNLIKE_OURS: Final[Mapping[str, Any]] = {
    "use_dora": False,
    "use_rslora": False,
    "fan_in_fan_out": False,
    "bias": "none",
    "rank_pattern": {},
    "alpha_pattern": {},
    "modules_to_save": None,
    "layers_to_transform": None,
    "trainable_token_indices": None,
}
"""Variants of adapters, each with the value at which it is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftAdapters:
    """The adapters of a folder."""

    config: LoraConfig
    """Rank, alpha and targets."""
    tensors: Mapping[str, Tensor]
    """By our names."""


def write_peft(
    adapters: Mapping[str, Tensor],
    folder: AnyPath,
    *,
    lora: LoraConfig,
    model: ModelConfig,
    base: AnyPath,
    dtype: torch.dtype,
) -> None:
    """Write a folder that peft loads; the configuration last.

    Args:
        adapters: whole, by the names that `adapt` gave them.
        folder: made where it does not exist.
        lora: they were trained with.
        model: of the base.
        base: the folder of the base, whose tokenizer and chat template go along.
        dtype: of the tensors in the file.

    Raises:
        HuggingFaceError: the base keeps an adapted projection in one tensor with others.
    """
    names = projection_names(base, model)
    tensors: dict[str, Tensor] = {}
    targets: set[str] = set()
    for ours, tensor in adapters.items():
        layer, _, part = ours.rpartition(".")
        theirs = names.get(layer)
        if theirs is None:
            raise HuggingFaceError(
                f"{layer}: its base keeps it in one tensor with others, and has no adapter for it"
                " alone; export the merged weights, without --adapter"
            )
        targets.add(theirs.rpartition(".")[2])
        tensors[f"{_PREFIX}{theirs}.{_PARTS[part]}.weight"] = tensor.to(dtype).contiguous()
    make_folder(folder)
    write_tensor_file(folder / WEIGHTS_FILE, tensors)
    copy_companions(base, folder)
    write_json(
        folder / CONFIG_FILE,
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": str(base),
            "r": lora.rank,
            "lora_alpha": lora.alpha,
            "lora_dropout": 0.0,
            "target_modules": sorted(targets),
            "init_lora_weights": True,
            "inference_mode": True,
            **_UNLIKE_OURS,
        },
    )


def read_peft(folder: AnyPath, *, model: ModelConfig, base: AnyPath) -> PeftAdapters:
    """The adapters of a folder that peft, or `write_peft`, wrote for this base.

    Raises:
        HuggingFaceError: they are no plain adapters of linear layers, or of another model.
    """
    settings = read_json(folder / CONFIG_FILE)
    _check_plain(settings, folder=folder)
    ours_of = {theirs: ours for ours, theirs in projection_names(base, model).items()}
    tensors = dict(_tensors(folder / WEIGHTS_FILE, ours_of))
    layers = {name.rpartition(".")[0] for name in tensors}
    targets = {layer.rpartition(".")[2] for layer in layers}
    in_model = {layer for layer in ours_of.values() if layer.rpartition(".")[2] in targets}
    if len(tensors) != 2 * len(layers) or layers != in_model:
        missing = sorted(in_model - layers) or ["an A or a B"]
        raise HuggingFaceError(
            f"{folder / WEIGHTS_FILE}: has adapters for some of the layers alone; missing:"
            f" {', '.join(missing[:3])}"
        )
    try:
        config = LoraConfig(
            rank=settings["r"],
            alpha=float(settings["lora_alpha"]),
            targets=",".join(sorted(targets)),
        )
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise HuggingFaceError(f"{folder / CONFIG_FILE}: r and lora_alpha: {error}") from error
    return PeftAdapters(config=config, tensors=tensors)


def _check_plain(settings: Mapping[str, Any], *, folder: AnyPath) -> None:
    if settings.get("peft_type") != "LORA":
        raise HuggingFaceError(
            f"{folder / CONFIG_FILE}: peft_type is {settings.get('peft_type')!r}, not 'LORA'"
        )
    for name, plain in _UNLIKE_OURS.items():
        if settings.get(name, plain) not in (plain, None):
            raise HuggingFaceError(
                f"{folder / CONFIG_FILE}: {name} is {settings[name]!r}; only plain adapters are"
                " known, without it"
            )


def _tensors(file: AnyPath, ours_of: Mapping[str, str]) -> Iterator[tuple[str, Tensor]]:
    part_of = {theirs: part for part, theirs in _PARTS.items()}
    try:
        with open_tensor_file(file) as stored:
            for name in stored.keys():  # noqa: SIM118 - no dict
                layer, _, part = name.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
                if layer not in ours_of or part not in part_of:
                    raise HuggingFaceError(f"{file}: {name} is no adapter of this model")
                yield f"{ours_of[layer]}.{part_of[part]}", stored.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise HuggingFaceError(f"{file}: {error}") from error
