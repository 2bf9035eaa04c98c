"""From their config.json to a `ModelConfig` and back."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, cast

from drumline_contract.config import ConfigError, ModelConfig
from drumline_contract.config.decoding import decode
from drumline_contract.config.equivalence import canonical
from drumline_contract.shapes.hugging_face.kind import HuggingFaceError, Kind, Raw
from drumline_contract.shapes.hugging_face.kinds import KINDS
from drumline_contract.shapes.hugging_face.without_effect import (
    WITHOUT_EFFECT,
    agrees,
    is_off,
    may_agree,
)

_MISSING: Any = object()
_OTHER_NAMES = {"num_experts": "num_local_experts", "num_local_experts": "num_experts"}
"""Alternative names of keys in files of `transformers` 5 and later."""
_OF_HEADS = {"kv_heads": "num_key_value_heads", "head_size": "head_dim"}
PACKING = "quantization_config"
_FP8_BLOCK = [128, 128]
"""The blocks of fp8 in which DeepSeek-V3 is published, and which `models.hugging_face` unpacks."""
_NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
"""Said, as some types are otherwise given a token: Phi-3 one that a small vocabulary has not."""
_ROPE_BASES = ("rope_theta", "rope_local_base_freq")
_MAX_SHOWN = 60


def kind_of(config: ModelConfig, *, like: Raw | None = None) -> Kind:
    """Return the model type there that computes what ours does, so that it comes back unchanged.

    Args:
        config: ours.
        like: a config.json whose type is preferred, as several often compute the same.

    Raises:
        HuggingFaceError: there is none.
    """
    # Compare what the models compute, since many fields can be written in several ways.
    wanted = canonical(config)
    nearest: tuple[str, ...] = ()
    first = None if like is None else like.get("model_type")
    # The preferred type comes first. The sort is stable, so the others keep their order.
    for kind in sorted(KINDS, key=lambda kind: kind.model_type != first):
        try:
            back = _to_ours(_to_theirs(config, kind), kind)
        # A round trip through the type shows what it loses.
        except HuggingFaceError:
            continue
        lost = differences(back, wanted)
        if not lost:
            return kind
        # A type of another family is no helpful suggestion.
        if back.family is not config.family:
            continue
        # The fewest lost fields make the best message.
        if not nearest or len(lost) + 1 < len(nearest):
            nearest = (kind.model_type, *lost)
    name, *lost = nearest or ("none",)
    raise HuggingFaceError(
        f"this {config.family} model has no layout there; the nearest is {name}, where"
        f" {'; '.join(lost) or 'nothing fits'}"
    )


def kind_of_file(raw: Raw) -> Kind:
    """Return the model type that a config.json names.

    Raises:
        HuggingFaceError: the type is not supported.
    """
    for kind in KINDS:
        if kind.model_type == raw.get("model_type"):
            return kind
    known = ", ".join(kind.model_type for kind in KINDS)
    raise HuggingFaceError(
        f"config.json: model_type is {_shown(raw.get('model_type'))}; one of {known} can be"
        " imported"
    )


def to_theirs(config: ModelConfig, *, dtype: str, like: Raw | None = None) -> dict[str, Any]:
    """Return the config.json of transformers for our model.

    Args:
        config: ours.
        dtype: dtype of the tensors.
        like: the config.json that the model came with: its special tokens, its longest sequence and
            all that does not change what is computed are taken over.

    Raises:
        HuggingFaceError: no model type there computes what ours does.
    """
    kind = kind_of(config, like=like)
    # Phase 1: our values, with the special tokens unset.
    values = {**_NO_TOKENS, **_to_theirs(config, kind)}
    # Phase 2: take over the original file if it still describes this model.
    if like is not None and like.get("model_type") == kind.model_type:
        try:
            same = not differences(to_ours(like), config)
        except HuggingFaceError:
            same = False
        longest, rope = values.get("max_position_embeddings"), values.get("rope_scaling")
        bases = {key: values[key] for key in _ROPE_BASES if key in values}
        # A changed model keeps only notes that are valid for any model.
        values |= like if same else _without_effect(like, kind)
        # Bases of the original may be overridden by its section, and not by the one written here.
        values |= bases
        there = values.get("max_position_embeddings")
        # Never promise a shorter limit than the model or the original has.
        if isinstance(longest, int) and isinstance(there, int):
            values["max_position_embeddings"] = max(longest, there)
            if longest > there and rope is not None and rope["rope_type"] == "longrope":
                # what is not said there would follow from the longer length
                values.pop("rope_parameters", None)
                values["rope_scaling"] = rope
    # Phase 3: remove what describes the original's storage.
    for key in ("dtype", PACKING):  # what is written is not packed
        values.pop(key, None)
    if kind.further_layers:  # nor has it those
        values[kind.further_layers] = 0
    return {**values, "torch_dtype": dtype}


def _without_effect(like: Raw, kind: Kind) -> dict[str, Any]:
    """Return the notes of the original config.json that also hold for a changed model."""
    return {key: like[key] for key in (WITHOUT_EFFECT - kind.known) & like.keys()}


def to_ours(raw: Raw) -> ModelConfig:
    """Translate a config.json.

    Raises:
        HuggingFaceError: the model is not supported.
    """
    return _to_ours(raw, kind_of_file(raw))


def differences(there: ModelConfig, here: ModelConfig) -> list[str]:
    """List in words the fields in which two models compute otherwise."""
    there, here = canonical(there), canonical(here)
    return [
        f"{field.name} is {getattr(there, field.name)} there and {getattr(here, field.name)} here"
        for field in fields(there)
        if getattr(there, field.name) != getattr(here, field.name)
    ]


def _to_theirs(config: ModelConfig, kind: Kind) -> dict[str, Any]:
    values = {theirs: getattr(config, ours) for theirs, ours in kind.fields.items()}
    if "moe_intermediate_size" in values:
        values["moe_intermediate_size"] = config.features_per_expert
    for part in kind.parts:
        # `fixed` comes last, so that no part can override it.
        values |= part.write(config)
    return {
        "architectures": [kind.architecture],
        "model_type": kind.model_type,
        **values,
        **kind.fixed,
    }


def _to_ours(raw: Raw, kind: Kind) -> ModelConfig:
    # Phase 1: values that our model cannot vary. A missing key means the fixed value.
    for key, value in kind.fixed.items():
        if raw.get(key, value) != value and not (not value and raw[key] is None):
            raise HuggingFaceError(
                f"config.json: {key} is {_shown(raw[key])}; only {value!r} can be imported"
            )
    # Phase 2: refuse unknown keys before any value is used.
    said_again = _unknown(raw, kind)
    values = {ours: _field(raw, theirs, kind=kind) for theirs, ours in kind.fields.items()}
    values |= kind.ours
    for part in kind.parts:
        values |= part.read(raw)
    # GPT-2 has one key-value head for each query head, and 4 times the width by default.
    if kind.model_type == "gpt2":
        values["kv_heads"] = values["heads"]
        if values["ffn_size"] is None and isinstance(values["hidden_size"], int):
            values["ffn_size"] = 4 * values["hidden_size"]
    # A base of layers with a window is of no effect where no layer has one.
    if values.get("sliding_window") is None:
        values.pop("window_rope_theta", None)
    # Phase 3: our own checks, with the error in the file's words.
    try:
        model = decode(ModelConfig, values, path="")
    except ConfigError as error:
        raise HuggingFaceError(f"config.json: {_in_their_words(str(error), kind)}") from error
    except (TypeError, ZeroDivisionError) as error:
        raise HuggingFaceError(f"config.json: {error}") from error
    # Phase 4: keys that repeat a property must agree with it.
    for key in said_again:
        if not agrees(key, raw[key], model):
            raise _refusal(raw, key, kind)
    return model


def _in_their_words(sentence: str, kind: Kind) -> str:
    """Replace our field name in an error message by the key of config.json."""
    name, colon, problem = sentence.removeprefix("model.").partition(": ")
    theirs = {**_OF_HEADS, **{ours: theirs for theirs, ours in kind.fields.items()}}
    return f"{theirs.get(name, name)}{colon}{problem}"


def _unknown(raw: Raw, kind: Kind) -> list[str]:
    """List unknown keys that must agree with the model.

    Raises:
        HuggingFaceError: another unknown key may matter.
    """
    said_again: list[str] = []
    for key, value in raw.items():
        if key in kind.known or _OTHER_NAMES.get(key) in kind.known or is_off(key, value):
            # A null or disabled variant changes nothing.
            continue
        if key == PACKING:
            refuse_packing(value, unpacked=kind.unpacked)
        elif may_agree(key):
            said_again.append(key)
        else:
            raise _refusal(raw, key, kind)
    return said_again


def _refusal(raw: Raw, key: str, kind: Kind) -> HuggingFaceError:
    return HuggingFaceError(
        f"config.json: {_shown(key)} is {_shown(raw[key])}, which {kind.model_type} is not known"
        f" to have here{_hint(key, kind.known - raw.keys())}: it may change what the model"
        " computes; take it out where it does not"
    )


def refuse_packing(value: object, *, unpacked: Collection[str]) -> None:
    """Refuse packed weights other than those that `models.hugging_face` unpacks as it reads.

    Args:
        value: the `quantization_config` of a config.json.
        unpacked: ways of packing (`quant_method`) that can be read.

    Raises:
        HuggingFaceError: the weights are packed in another way.
    """
    method = cast("Raw", value).get("quant_method") if isinstance(value, Mapping) else None
    if method not in unpacked:
        raise HuggingFaceError(
            f"config.json: {PACKING} says that the weights are packed ({_shown(method)}); import"
            " the model in bf16 or fp32 (lora.base_bits packs it for a fine-tune)"
        )
    block = cast("Raw", value).get("weight_block_size")
    if method == "fp8" and block != _FP8_BLOCK:
        raise HuggingFaceError(
            f"config.json: weight_block_size of {PACKING} is {_shown(block)}; only {_FP8_BLOCK}"
            " can be unpacked"
        )


def _hint(key: str, absent: Collection[str]) -> str:
    """Suggest a key, except for long ones, because comparison takes quadratic time."""
    # get_close_matches is quadratic in the length.
    near = difflib.get_close_matches(key, sorted(absent), n=1, cutoff=0.8) if len(key) < 64 else []
    return f" (did you mean {near[0]}?)" if near else ""


def _field(raw: Mapping[str, Any], key: str, *, kind: Kind) -> Any:
    if key not in raw and _OTHER_NAMES.get(key) in raw:
        # Some keys have two names in different versions.
        key = _OTHER_NAMES[key]
    value = raw.get(key, kind.meaning.get(key, _MISSING))
    if value is _MISSING:
        raise HuggingFaceError(f"config.json: {key} is missing")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
