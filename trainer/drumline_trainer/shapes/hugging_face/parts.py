"""Keys of theirs that belong together: rotary positions, windows, the sizes of heads."""

from __future__ import annotations

from typing import Any

from drumline_trainer.config import ModelConfig
from drumline_trainer.config.model import AttentionBias
from drumline_trainer.shapes.hugging_face.kind import HuggingFaceError, Part, Raw

FULL, SLIDING = "full_attention", "sliding_attention"
"""Words of their `layer_types`."""
_SCALING_FIELDS = {
    "factor": "factor",
    "low_freq_factor": "low_frequency_factor",
    "high_freq_factor": "high_frequency_factor",
    "original_max_position_embeddings": "original_positions",
}
_ROPE_KEYS = frozenset({"rope_theta", "rope_scaling", "rope_parameters"})


def rope(*, theta: float = 10_000.0) -> Part:
    """Rotary positions, from either place where their versions keep them.

    Args:
        theta: what a missing one means.
    """

    def read(raw: Raw) -> dict[str, Any]:
        values = rope_values(raw)
        return {
            "rope_theta": values.get("rope_theta", raw.get("rope_theta", theta)),
            "rope_scaling": _scaling(values),
        }

    return Part(keys=_ROPE_KEYS, read=read, write=_write_rope)


def rope_values(raw: Raw) -> dict[str, Any]:
    """The object that says how positions turn; empty where there is none. Raises HuggingFaceError.

    All versions of `transformers` took `type` for `rope_type`.
    """
    for key in ("rope_parameters", "rope_scaling"):
        values = raw.get(key)
        if values is None:
            continue
        if not isinstance(values, dict):
            raise HuggingFaceError(f"config.json: {key} must be an object or null")
        nested = [name for name, value in values.items() if isinstance(value, dict)]  # pyright: ignore[reportUnknownVariableType] - decoded JSON
        if nested:
            raise HuggingFaceError(
                f"config.json: {key} differs between layers ({', '.join(map(str, nested))}); only"  # pyright: ignore[reportUnknownArgumentType] - decoded JSON
                " one for all layers can be imported"
            )
        return values  # pyright: ignore[reportUnknownVariableType] - decoded JSON
    return {}


def _scaling(values: Raw) -> dict[str, Any] | None:
    kind = values.get("rope_type", values.get("type", "default"))
    known = {"rope_type", "type", "rope_theta"}
    if kind == "default":
        _refuse_unknown(values, known)
        return None
    if kind != "llama3":
        raise HuggingFaceError(
            f"config.json: rope_scaling is of type {kind!r}; only default and llama3 can be"
            " imported"
        )
    missing = _SCALING_FIELDS.keys() - values.keys()
    if missing:
        raise HuggingFaceError(f"config.json: rope_scaling lacks {', '.join(sorted(missing))}")
    _refuse_unknown(values, known | _SCALING_FIELDS.keys())
    return {ours: values[theirs] for theirs, ours in _SCALING_FIELDS.items()}


def _refuse_unknown(values: Raw, known: set[str]) -> None:
    for key, value in values.items():
        neutral = value is None or (key == "partial_rotary_factor" and value == 1)
        if key not in known and not neutral:
            raise HuggingFaceError(
                f"config.json: {key} of rope_scaling is {value!r}, which is not known here and may"
                " change what the model computes"
            )


def _write_rope(config: ModelConfig) -> dict[str, Any]:
    """In the keys that all their versions read."""
    scaling = config.rope_scaling
    if scaling is None:
        return {"rope_theta": config.rope_theta}
    values = {theirs: getattr(scaling, ours) for theirs, ours in _SCALING_FIELDS.items()}
    return {"rope_theta": config.rope_theta, "rope_scaling": {"rope_type": "llama3", **values}}


def _read_heads(raw: Raw) -> dict[str, Any]:
    """A head size that follows from the others is none of its own."""
    heads, hidden = raw.get("num_attention_heads"), raw.get("hidden_size")
    size = raw.get("head_dim")
    if isinstance(heads, int) and isinstance(hidden, int) and size is not None:
        size = None if size * heads == hidden else size
    return {"head_size": size, "kv_heads": raw.get("num_key_value_heads") or heads}


def heads(*, size: int | None = None) -> Part:
    """Sizes and numbers of heads.

    Args:
        size: what a missing `head_dim` means; None: hidden_size / heads.
    """

    def read(raw: Raw) -> dict[str, Any]:
        return _read_heads({"head_dim": size, **raw})

    def write(config: ModelConfig) -> dict[str, Any]:
        return {"head_dim": config.features_per_head, "num_key_value_heads": config.kv_heads}

    return Part(keys=frozenset({"head_dim", "num_key_value_heads"}), read=read, write=write)


def window(*, missing: int | None) -> Part:
    """A `sliding_window` for all layers, as Mistral has it.

    Args:
        missing: what a missing one means; null means none.
    """
    return Part(
        keys=frozenset({"sliding_window", "layer_types"}),
        read=lambda raw: _layers_with_window(raw, raw.get("sliding_window", missing), every=0),
        write=lambda config: {"sliding_window": config.sliding_window},
    )


def _read_qwen_window(raw: Raw) -> dict[str, Any]:
    """Off unless `use_sliding_window`; then the layers from `max_window_layers` on have one."""
    size = raw.get("sliding_window", 4096) if raw.get("use_sliding_window") else None
    layers, without = raw.get("num_hidden_layers"), raw.get("max_window_layers", 28)
    if size is None or raw.get("layer_types") is not None:
        return _layers_with_window(raw, size, every=0)
    if not isinstance(layers, int) or not isinstance(without, int) or 0 < without < layers:
        raise HuggingFaceError(
            f"config.json: max_window_layers is {without!r} of {layers!r} layers; a sliding_window"
            " can be imported for all layers, or for all but every n-th"
        )
    return _layers_with_window(raw, None if without else size, every=0)


def _write_qwen_window(config: ModelConfig) -> dict[str, Any]:
    if config.sliding_window is None:
        return {"use_sliding_window": False}
    return {
        "use_sliding_window": True,
        "sliding_window": config.sliding_window,
        "max_window_layers": 0,
        "layer_types": layer_types(config),
    }


QWEN_WINDOW = Part(
    keys=frozenset({"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"}),
    read=_read_qwen_window,
    write=_write_qwen_window,
)


def layer_types(config: ModelConfig) -> list[str]:
    """Of every layer, in their words."""
    windows = (config.window(layer) for layer in range(config.layers))
    return [FULL if window is None else SLIDING for window in windows]


def _layers_with_window(raw: Raw, size: Any, *, every: int) -> dict[str, Any]:
    """A window of all layers but every n-th, where `layer_types` does not say which.

    Raises:
        HuggingFaceError: `layer_types` says others than every n-th.
    """
    types: Any = raw.get("layer_types")
    if types is not None and size is not None:
        if not isinstance(types, list) or not {*map(str, types)} <= {FULL, SLIDING}:  # pyright: ignore[reportUnknownArgumentType] - decoded JSON
            raise HuggingFaceError(
                f"config.json: layer_types must be a list of {FULL} and {SLIDING}"
            )
        kinds = [str(kind) for kind in types]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - decoded JSON
        every = kinds.index(FULL) + 1 if FULL in kinds else 0
        expected = [
            FULL if every and (layer + 1) % every == 0 else SLIDING for layer in range(len(kinds))
        ]
        if kinds != expected:
            raise HuggingFaceError(
                "config.json: layer_types has no period; a sliding_window can be imported for all"
                " layers, or for all but every n-th"
            )
    if size is None or every == 1:
        return {"sliding_window": None, "full_attention_every": 0}
    return {"sliding_window": size, "full_attention_every": every}


def _read_biases(raw: Raw) -> dict[str, Any]:
    has = raw.get("attention_bias", False)
    return {"attention_bias": AttentionBias.ALL if has else AttentionBias.NONE}


def _write_biases(config: ModelConfig) -> dict[str, Any]:
    return {"attention_bias": config.attention_bias is AttentionBias.ALL}


BIASES = Part(keys=frozenset({"attention_bias"}), read=_read_biases, write=_write_biases)
"""Of all four projections of attention, or of none."""
