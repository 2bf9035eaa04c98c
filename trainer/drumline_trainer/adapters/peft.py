"""Adapters as the library peft lays them out: adapter_config.json and adapter_model.safetensors.

    base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight    rank x inputs
    base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight    outputs x rank

`PeftModel.from_pretrained(base, folder)` and inference servers put them beside the base, which is a
hundred times their size. Names are those of the base's own tensors in its folder. Where that keeps
several projections in one tensor (Phi-3, GPT-2) there is no adapter for each: those are merged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from safetensors import SafetensorError
from torch import Tensor

from drumline_contract.buckets.hub import HubPlace
from drumline_contract.buckets.path import AnyPath, make_folder
from drumline_contract.config import ConfigError, Family, LoraConfig, ModelConfig
from drumline_contract.shapes.hugging_face import LANGUAGE_MODULE, HuggingFaceError, read_json
from drumline_trainer.adapters import peft_experts
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
ADAPTER_FILES: Final = (CONFIG_FILE, WEIGHTS_FILE)
_PREFIX: Final = "base_model.model."
_PARAMETERS: Final = "target_parameters"
_OF_MIXTURE: Final = frozenset({"gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
"""Last parts of names that peft takes for experts, which are one tensor in transformers 5."""
_PARTS: Final = {A: "lora_A", B: "lora_B"}
_PLAIN: Final[Mapping[str, Any]] = {
    "fan_in_fan_out": False,
    "bias": "none",
    "rank_pattern": {},
    "alpha_pattern": {},
    "modules_to_save": None,
    "layers_to_transform": None,
    "trainable_token_indices": None,
    "use_dora": False,
}
"""Keys of variants that ours lack, each with the value at which it is none. A key that a version of
peft adds is off where it is null, false or empty, and refused elsewhere."""
_READ: Final = frozenset({"peft_type", "r", "lora_alpha", "use_rslora", "init_lora_weights"})
_WITHOUT_EFFECT: Final = frozenset(
    {
        # notes, and what only training reads
        *("task_type", "base_model_name_or_path", "revision", "peft_version", "auto_mapping"),
        *("inference_mode", "lora_dropout", "merge_weights", "runtime_config"),
        # the names in the tensor file show which layers have adapters
        *("target_modules", "exclude_modules", "layers_pattern"),
        "fan_in_fan_out",  # peft ignores it for linear layers, and others have no adapters here
        # settings of initializations, which init_lora_weights names
        *("loftq_config", "eva_config", "corda_config", "lora_ga_config"),
        *("megatron_core", "qalora_group_size"),  # need megatron_config, use_qalora
    }
)
"""Keys whose value changes nothing in what adapters compute."""
_KEEP_THE_BASE: Final = frozenset({"gaussian", "orthogonal", "eva"})
"""Ways to begin adapters, beside true and false, that leave the weights of the base as they are."""
KNOWN: Final = _READ | _WITHOUT_EFFECT | _PLAIN.keys()
"""All keys whose meaning stands here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftAdapters:
    """The adapters of a folder."""

    config: LoraConfig
    """Rank, alpha and targets."""
    tensors: Mapping[str, Tensor]
    """Tensors by our names."""


def write_peft(
    adapters: Mapping[str, Tensor],
    folder: AnyPath,
    *,
    lora: LoraConfig,
    model: ModelConfig,
    base: AnyPath,
    dtype: torch.dtype,
    hub_base: HubPlace | None = None,
) -> None:
    """Write a folder that peft loads; the configuration last.

    Args:
        adapters: whole, by the names that `adapt` gave them.
        folder: made where it does not exist.
        lora: they were trained with.
        model: model of the base.
        base: the folder of the base, whose tokenizer and chat template go along.
        dtype: dtype of the tensors in the file.
        hub_base: the base's repository, if `base` is a cached copy of one.

    Raises:
        HuggingFaceError: the base keeps an adapted projection in one tensor with others.
    """
    # Phase 1: names. Our layer names become those of the base's tensors.
    names = _names(base, model, [name.rpartition(".")[0] for name in adapters])
    # Experts have a layout of their own, which `peft_experts` converts.
    experts = {name: each for name, each in adapters.items() if peft_experts.is_of_experts(name)}
    tensors = {
        f"{_PREFIX}{name}": tensor.to(dtype).contiguous()
        for name, tensor in peft_experts.to_theirs(experts, model)
    }
    layers: set[str] = set()
    for ours, tensor in adapters.items():
        if ours in experts:
            continue
        layer, _, part = ours.rpartition(".")
        theirs = names.get(layer)
        # A missing name is a projection that the base keeps fused with others, such as qkv_proj.
        if theirs is None:
            raise HuggingFaceError(
                f"{layer}: its base keeps it in one tensor with others, and has no adapter for it"
                " alone; export the merged weights, without --adapter"
            )
        layers.add(theirs)
        tensors[f"{_PREFIX}{theirs}.{_PARTS[part]}.weight"] = tensor.to(dtype).contiguous()
    # Phase 2: files. The configuration comes last: a folder without it is not an adapter for peft.
    make_folder(folder)
    write_tensor_file(folder / WEIGHTS_FILE, tensors)
    copy_companions(base, folder)
    write_json(
        folder / CONFIG_FILE,
        {
            **_settings(lora),
            **_base_names(base, hub_base),
            **_targets(
                layers, peft_experts.target_parameters(list(experts)), mixture=_has_experts(model)
            ),
            # `_PLAIN` writes every switch explicitly, so that a later default of peft cannot change
            # the adapters.
            **_PLAIN,
        },
    )


def _targets(layers: Iterable[str], experts: Iterable[str], *, mixture: bool) -> dict[str, Any]:
    """Return `target_modules` and `target_parameters`.

    Args:
        layers: their names of linear layers.
        experts: `target_parameters` of experts.
        mixture: whether the base has experts. peft takes names of feed-forward layers there for
            names of experts, so those layers are named by their weights.
    """
    named = {
        layer for layer in layers if not mixture or layer.rpartition(".")[2] not in _OF_MIXTURE
    }
    weights = {f"{'.'.join(layer.split('.')[-2:])}.weight" for layer in {*layers} - named}
    return {
        "target_modules": _target_modules(named),
        "target_parameters": sorted({*experts, *weights}) or None,
    }


def _target_modules(layers: Collection[str]) -> list[str] | str:
    """Return the last parts of names, by which peft finds layers, or a pattern of whole names.

    A vision tower has layers of the same last parts as the language model. A number, and a part
    that a larger module is called too, would find other modules.
    """
    inner = {part for layer in layers for part in layer.split(".")[:-1]}
    last = {layer: layer.rpartition(".")[2] for layer in layers}
    if layers and all(layer.startswith(LANGUAGE_MODULE) for layer in layers):
        return rf"{re.escape(LANGUAGE_MODULE)}.*\.({'|'.join(sorted({*last.values()}))})"
    return sorted({layer if end in inner or end.isdigit() else end for layer, end in last.items()})


def _has_experts(model: ModelConfig) -> bool:
    """Return whether a model has experts. Keys of a module's config.json tell it."""
    return model.experts > 0 or "expert" in model.config_json


def _base_names(base: AnyPath, hub_base: HubPlace | None) -> dict[str, Any]:
    """Return the fields that name the base. peft has none for a folder of a repository."""
    if hub_base is None or hub_base.path:
        return {"base_model_name_or_path": str(base)}
    # The path of a cache exists on this machine only.
    return {"base_model_name_or_path": hub_base.repository, "revision": hub_base.revision}


def _settings(lora: LoraConfig) -> dict[str, Any]:
    """Return the part of adapter_config.json that names no layer and no base."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "use_rslora": lora.rslora,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def read_peft(
    folder: AnyPath, *, model: ModelConfig, base: AnyPath, layers: Collection[str] = ()
) -> PeftAdapters:
    """Read adapters that peft, or `write_peft`, wrote for this base.

    Args:
        folder: folder with adapter_config.json and adapter_model.safetensors.
        model: model of the base.
        base: the folder of the base.
        layers: names of a transformers module's linear layers; models of our own need none.

    Raises:
        HuggingFaceError: they are not plain adapters of linear layers, or belong to another model.
    """
    # Phase 1: settings. Anything that changes what adapters compute must be known or off.
    settings = read_json(folder / CONFIG_FILE)
    check_plain(settings, folder=folder)
    # Phase 2: tensors, first of linear layers and then of experts.
    ours_of = {theirs: ours for ours, theirs in _names(base, model, layers).items()}
    with_experts = bool(_experts_in(settings))
    tensors = dict(_tensors(folder / WEIGHTS_FILE, ours_of, with_experts=with_experts))
    experts = dict(_of_experts(folder, settings, model))
    adapted = {name.rpartition(".")[0] for name in tensors}
    targets = {layer.rpartition(".")[2] for layer in adapted}
    # Phase 3: completeness. peft may adapt some layers only, and ours adapt all layers of a name.
    in_model = {layer for layer in ours_of.values() if layer.rpartition(".")[2] in targets}
    # Two tensors per layer: an A and a B.
    if len(tensors) != 2 * len(adapted) or adapted != in_model:
        missing = sorted(in_model - adapted) or ["an A or a B"]
        raise HuggingFaceError(
            f"{folder / WEIGHTS_FILE}: has adapters for some of the layers alone; missing:"
            f" {', '.join(missing[:3])}"
        )
    try:
        config = LoraConfig(
            rank=settings["r"],
            alpha=float(settings["lora_alpha"]),
            rslora=bool(settings.get("use_rslora")),
            # Targets are taken from the tensors, because `target_modules` may be a pattern or
            # "all-linear".
            targets=",".join(sorted(targets | peft_experts.targets_of(experts))),
        )
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise HuggingFaceError(f"{folder / CONFIG_FILE}: r and lora_alpha: {error}") from error
    return PeftAdapters(config=config, tensors=tensors | experts)


def _of_experts(
    folder: AnyPath, settings: Mapping[str, Any], model: ModelConfig
) -> Iterator[tuple[str, Tensor]]:
    """Yield the factors of experts by our names. Raises HuggingFaceError."""
    parameters = _experts_in(settings)
    if not parameters:
        return
    file = folder / WEIGHTS_FILE
    # A model without experts, or with code of transformers, has no place for these adapters here.
    if not model.experts or model.family is Family.TRANSFORMERS:
        raise HuggingFaceError(
            f"{folder / CONFIG_FILE}: target_parameters is {parameters!r}, and adapters of experts"
            " belong to models with experts and code of our own"
        )
    try:
        with open_tensor_file(file) as stored:
            theirs = {
                name.removeprefix(_PREFIX): stored.get_tensor(name)
                for name in stored.keys()  # noqa: SIM118 - no dict
                # Names of linear layers are read elsewhere. The prefix is removed, so names begin
                # at the base model.
                if peft_experts.holds_experts(name)
            }
        made = dict(peft_experts.to_ours(theirs, parameters, model))
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise HuggingFaceError(f"{file}: {error}") from error
    # The symmetric difference finds missing factors and unknown ones.
    if missing := sorted(peft_experts.expected(parameters, model) ^ made.keys()):
        raise HuggingFaceError(
            f"{file}: has adapters for experts of some layers alone; missing: {missing[0]}"
        )
    yield from made.items()


def _experts_in(settings: Mapping[str, Any]) -> list[str]:
    """Return those of `target_parameters` that are of experts, and not the weight of a layer."""
    parameters: list[str] = settings.get(_PARAMETERS) or []
    return [each for each in parameters if not peft_experts.is_of_layer(each)]


def _names(base: AnyPath, model: ModelConfig, layers: Iterable[str]) -> Mapping[str, str]:
    """Their name of each layer: a module of transformers has its own. Raises HuggingFaceError."""
    if model.family is Family.TRANSFORMERS:
        return {layer: layer for layer in layers}
    return projection_names(base, model)


def check_plain(settings: Mapping[str, Any], *, folder: AnyPath) -> None:
    """Raise HuggingFaceError unless an adapter_config.json is of adapters that ours can be."""
    if settings.get("peft_type") != "LORA":
        raise HuggingFaceError(
            f"{folder / CONFIG_FILE}: peft_type is {settings.get('peft_type')!r}, not 'LORA'"
        )
    for name, value in settings.items():
        # Keys of a newer peft pass if they are off. An unknown key with a value might change the
        # result.
        if name in _READ or name in _WITHOUT_EFFECT or _is_off(value) or value == _PLAIN.get(name):
            continue
        if name == _PARAMETERS and peft_experts.reads(value):
            continue
        known = "" if name in _PLAIN else ", a key that is not known here"
        raise HuggingFaceError(
            f"{folder / CONFIG_FILE}: {name} is {value!r}{known}; only plain adapters and"
            " use_rslora can be read; leave the key out where it changes nothing"
        )
    _check_numbers(settings, folder=folder)
    # JSON has true and false. A string "false" would count as true.
    if type(settings.get("use_rslora", False)) is not bool and settings["use_rslora"] is not None:
        raise HuggingFaceError(
            f"{folder / CONFIG_FILE}: use_rslora must be true or false, not"
            f" {settings['use_rslora']!r}"
        )
    # PiSSA, OLoRA and similar initializations subtract their product from the base's weights.
    begun = settings.get("init_lora_weights")
    if not _is_off(begun) and begun is not True and str(begun).lower() not in _KEEP_THE_BASE:
        raise HuggingFaceError(
            f"{folder / CONFIG_FILE}: init_lora_weights is {begun!r}, which changes the base's"
            " weights too; convert the adapters with peft's save_pretrained and its"
            " path_initial_model_for_weight_conversion"
        )


def _check_numbers(settings: Mapping[str, Any], *, folder: AnyPath) -> None:
    """Raise HuggingFaceError unless rank and alpha are numbers: peft computes with no others."""
    for name, kinds, wanted in (("r", (int,), "whole"), ("lora_alpha", (int, float), "finite")):
        value = settings.get(name)
        if type(value) not in kinds or not math.isfinite(value or 0):
            raise HuggingFaceError(
                f"{folder / CONFIG_FILE}: {name} must be a {wanted} number, not {value!r}"
            )


def _is_off(value: object) -> bool:
    """Return whether a value means that a feature is not used."""
    # Identity for False: 0 equals False, and a number is a setting and not a switch.
    return value is None or value is False or value in ([], {}, "")


def _tensors(
    file: AnyPath, ours_of: Mapping[str, str], *, with_experts: bool
) -> Iterator[tuple[str, Tensor]]:
    part_of = {theirs: part for part, theirs in _PARTS.items()}
    try:
        with open_tensor_file(file) as stored:
            for name in stored.keys():  # noqa: SIM118 - no dict
                if with_experts and peft_experts.holds_experts(name):
                    # Experts are read by `_of_experts`, from the same file.
                    continue
                layer, _, part = name.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
                if layer not in ours_of or part not in part_of:
                    raise HuggingFaceError(f"{file}: {name} is no adapter of this model")
                yield f"{ours_of[layer]}.{part_of[part]}", stored.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise HuggingFaceError(f"{file}: {error}") from error
