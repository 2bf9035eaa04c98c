"""The model to be planned for: a preset, Hugging Face's config.json, or its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drumline_trainer.config import MODEL_PRESETS, ConfigError, Family, ModelConfig
from drumline_trainer.config.decoding import decode
from drumline_trainer.planner.hardware import unknown
from drumline_trainer.shapes.hugging_face import to_ours

_SHORT = {
    "hidden": "hidden_size",
    "ffn": "ffn_size",
    "vocabulary": "vocab_size",
    "vocab": "vocab_size",
    "tied": "tied_embeddings",
}


def preset(name: str) -> ModelConfig:
    """A built-in model. Raises ConfigError that says the nearest."""
    if name not in MODEL_PRESETS:
        raise ConfigError(unknown("model", name, MODEL_PRESETS))
    return MODEL_PRESETS[name]


def from_hugging_face(raw: Mapping[str, Any]) -> ModelConfig:
    """The model that a config.json describes. Raises ConfigError: another architecture."""
    return to_ours(raw)


def from_sizes(text: str) -> ModelConfig:
    """A model from `layers=32,hidden=4096,heads=32`; what is left out follows from these.

    Fields are `ModelConfig`'s; `hidden`, `ffn`, `vocabulary` and `tied` are short for theirs.

    Raises:
        ConfigError: a field is unknown, missing, or not a number; says the nearest.
    """
    values: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"dimensions: {part!r} is not written as field=value")
        values[_SHORT.get(name.strip(), name.strip())] = _value(name, value.strip())
    for name in ("layers", "hidden_size", "heads"):
        if name not in values:
            raise ConfigError(f"dimensions: {name} is missing; layers, hidden and heads are needed")
    values.setdefault("kv_heads", values["heads"])
    wide = 4 if values.get("family") == Family.GPT2.value else 8 / 3
    if isinstance(values["hidden_size"], int):
        values.setdefault("ffn_size", -(-int(values["hidden_size"] * wide) // 128) * 128)
    values.setdefault("vocab_size", 32_000)
    values.setdefault("max_positions", 1 << 20)
    _check_heads(values)
    return decode(ModelConfig, values, path="model.")


def nearest(number: int, legal: list[int]) -> str:
    """The legal values on both sides of a number, in words."""
    below = [value for value in legal if value < number]
    above = [value for value in legal if value > number]
    return " or ".join(str(value) for value in (*below[-1:], *above[:1]))


def _check_heads(values: Mapping[str, Any]) -> None:
    hidden, heads = values["hidden_size"], values["heads"]
    whole = all(isinstance(value, int) and value > 0 for value in (hidden, heads))
    if whole and "head_size" not in values and hidden % heads:
        legal = [n for n in range(1, min(hidden, 4 * heads) + 1) if hidden % n == 0]
        raise ConfigError(
            f"model.heads: hidden_size {hidden} does not divide by {heads} heads; use"
            f" {nearest(heads, legal)}"
        )


def _value(name: str, text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if name.strip() == "family":
        return text
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"dimensions: {name} must be a number, not {text!r}") from None
