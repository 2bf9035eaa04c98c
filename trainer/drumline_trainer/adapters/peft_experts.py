"""Adapters of experts as peft lays them out: `target_parameters` on tensors of all experts. Pure.

    model.layers.0.mlp.experts.base_layer.lora_A.weight    of gate_up_proj: X·R D
    model.layers.0.mlp.experts.base_layer.lora_B.weight    2F R·X
    model.layers.0.mlp.experts.lora_A.weight               of down_proj: X·R F
    model.layers.0.mlp.experts.lora_B.weight               D R·X

If only one of the two has an adapter, its name has no `base_layer`. In GPT-OSS rows of gate and up
alternate.

Shapes: X experts, R rank, D hidden, F feed-forward, O outputs, I inputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from drumline_contract.config import ModelConfig
from drumline_contract.config.lora import EXPERTS_DOWN, EXPERTS_GATE_UP
from drumline_trainer.adapters.lora_experts import DOWN, GATE_UP

_PARAMETERS: Final = {GATE_UP: "gate_up_proj", DOWN: "down_proj"}
_OURS, _THEIRS = "feed_forward.experts", "mlp.experts"
_BELOW: Final = "base_layer."
_FACTOR: Final = re.compile(r"\.mlp\.experts\.(base_layer\.)?lora_[AB]\.weight$")
_TARGETS: Final = {GATE_UP: EXPERTS_GATE_UP, DOWN: EXPERTS_DOWN}


def is_of_experts(name: str) -> bool:
    """Return whether a tensor of ours is a factor of experts."""
    return f".{_OURS}." in name


def target_parameters(names: Sequence[str]) -> list[str]:
    """Return peft's names of the weights that these tensors of ours adapt."""
    # The part before the last of a name is the module beside the weights.
    beside = {name.split(".")[-2] for name in names}
    return [f"{_THEIRS}.{theirs}" for ours, theirs in _PARAMETERS.items() if ours in beside]


def is_of_layer(parameter: str) -> bool:
    """Return whether one of `target_parameters` is the weight of a linear layer."""
    return parameter.endswith(".weight")


def reads(value: Any) -> bool:
    """Return whether an adapter_config.json's `target_parameters` are such as ours."""
    known = {*_PARAMETERS.values(), "weight"}
    return isinstance(value, list) and all(
        isinstance(each, str) and each.rpartition(".")[2] in known
        for each in value  # pyright: ignore[reportUnknownVariableType] - of JSON
    )


def targets_of(tensors: Mapping[str, Tensor]) -> set[str]:
    """Return the names in `lora.targets` of these tensors of ours."""
    beside = {name.split(".")[-2] for name in tensors if is_of_experts(name)}
    return {_TARGETS[each] for each in beside}


def to_theirs(adapters: Mapping[str, Tensor], model: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of each factor in peft's file, without its prefix."""
    # peft wraps one parameter in the other's wrapper. The first one lies inside, below
    # `base_layer`.
    both = len(targets_of(adapters)) == len(_PARAMETERS)
    for name, tensor in adapters.items():
        path, beside, part = name.rsplit(".", 2)
        layer = path.removesuffix(f".{_OURS}")
        below = _BELOW if both and beside == GATE_UP else ""
        theirs = f"model.{layer}.{_THEIRS}.{below}"
        if part == "lora_a":
            # peft joins experts and ranks in one dimension, experts outermost: [X, R, I] to [X * R,
            # I].
            yield f"{theirs}lora_A.weight", tensor.flatten(0, 1)
            continue
        # GPT-OSS is the only model with sinks, and it interleaves gate and up.
        by_turns = beside == GATE_UP and model.attention_sinks
        rows_XOR = _alternating(tensor) if by_turns else tensor
        # For B the rank is outermost: [X, O, R] to [O, R, X] to [O, R * X].
        yield f"{theirs}lora_B.weight", rows_XOR.permute(1, 2, 0).flatten(1)


def to_ours(
    stored: Mapping[str, Tensor], parameters: Sequence[str], model: ModelConfig
) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of each factor of ours, from peft's file without its prefix.

    Args:
        stored: the tensors of experts.
        parameters: `target_parameters`.
        model: model of the base.

    Raises:
        ValueError: a name or a shape is none of this model's.
    """
    known = {each.rpartition(".")[2] for each in parameters}
    # In the order of peft's wrapping: with both parameters, `base_layer` is gate and up.
    there = [ours for ours, theirs in _PARAMETERS.items() if theirs in known]
    for name, tensor in stored.items():
        path, _, rest = name.removeprefix("model.").partition(f".{_THEIRS}.")
        # Without `base_layer` it is the outermost wrapper, which is the last parameter.
        beside = GATE_UP if rest.startswith(_BELOW) else there[-1]
        match rest.removeprefix(_BELOW):
            case "lora_A.weight":
                # The view fails with a RuntimeError if the rows are not a multiple of the experts.
                part, made = "lora_a", tensor.view(model.experts, -1, tensor.shape[1])
            case "lora_B.weight":
                # The inverse of `to_theirs`: [O, R * X] to [O, R, X] to [X, O, R].
                by_rank = tensor.view(len(tensor), -1, model.experts)
                part, made = "lora_b", by_rank.permute(2, 0, 1)
                if beside == GATE_UP and model.attention_sinks:
                    made = _apart(made)
            case _:
                raise ValueError(f"{name} is not an adapter of this model")
        # Permuted views have strides that a copy into a slice would read slowly.
        yield f"{path}.{_OURS}.{beside}.{part}", made.contiguous()


def _alternating(rows_XOR: Tensor) -> Tensor:
    """Return rows of gate and up that alternate."""
    gate, up = rows_XOR.chunk(2, dim=1)
    return torch.stack((gate, up), dim=2).flatten(1, 2)


def _apart(rows_XOR: Tensor) -> Tensor:
    """Return the rows of gate, then the rows of up."""
    return torch.cat((rows_XOR[:, ::2], rows_XOR[:, 1::2]), dim=1)


def holds_experts(name: str) -> bool:
    """Return whether a tensor of peft's file is a factor of all experts of a layer."""
    return _FACTOR.search(name) is not None


def expected(parameters: Sequence[str], model: ModelConfig) -> set[str]:
    """Return our names, for every mixture, that a file with these `target_parameters` has."""
    known = {each.rpartition(".")[2] for each in parameters}
    return {
        f"layers.{layer}.{_OURS}.{ours}.{part}"
        for layer in range(model.layers)
        if model.has_experts(layer)
        for ours, theirs in _PARAMETERS.items()
        if theirs in known
        for part in ("lora_a", "lora_b")
    }
