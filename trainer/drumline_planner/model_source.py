"""The model to plan for: a preset, Hugging Face's config.json, or its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drumline_contract.config import MODEL_PRESETS, ConfigError, Family, ModelConfig
from drumline_contract.config.decoding import decode, field_kinds
from drumline_contract.hardware import unknown
from drumline_contract.shapes.hugging_face import to_ours

_SHORT = {
    "hidden": "hidden_size",
    "ffn": "ffn_size",
    "vocabulary": "vocab_size",
    "vocab": "vocab_size",
    "tied": "tied_embeddings",
}


def preset(name: str) -> ModelConfig:
    """Return a built-in model.

    Raises:
        ConfigError: the name is unknown. The message contains the nearest name.
    """
    if name not in MODEL_PRESETS:
        raise ConfigError(unknown("model", name, MODEL_PRESETS))
    return MODEL_PRESETS[name]


def from_hugging_face(raw: Mapping[str, Any]) -> ModelConfig:
    """Return the model that a config.json describes.

    Raises:
        ConfigError: the architecture is not supported.
    """
    return to_ours(raw)


def from_sizes(text: str) -> ModelConfig:
    """Return a model from `layers=32,hidden=4096,heads=32`, which implies the other sizes.

    Fields are those of `ModelConfig`. `hidden`, `ffn`, `vocabulary` and `tied` are short names.

    Raises:
        ConfigError: a field is unknown, missing, or not a number. The message names the nearest
            field.
    """
    known = (*_SHORT, *field_kinds(ModelConfig))
    values: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        short, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ConfigError(f"dimensions: {part!r} must be written as field=value")
        name = _SHORT.get(short, short)
        if short not in known:
            raise ConfigError(unknown("dimensions", short, known))
        if name in values:
            raise ConfigError(f"dimensions: {name} is given twice")
        values[name] = _value(short, value)
    for name in ("layers", "hidden_size", "heads"):
        if name not in values:
            raise ConfigError(
                f"dimensions: {name} is missing; layers, hidden and heads are required"
            )
    values.setdefault("kv_heads", values["heads"])
    wide = 4 if values.get("family") == Family.GPT2.value else 8 / 3
    if isinstance(values["hidden_size"], int):
        values.setdefault("ffn_size", -(-int(values["hidden_size"] * wide) // 128) * 128)
    values.setdefault("vocab_size", 32_000)
    values.setdefault("max_positions", 1 << 20)
    return decode(ModelConfig, values, path="model.")


def _value(name: str, text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if name == "family":
        return text
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"dimensions: {name} must be a number, got {text!r}") from None
