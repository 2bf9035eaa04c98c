"""Groups of config.json keys: windows, sizes of heads, biases, caps, multipliers."""

from __future__ import annotations

import math
from typing import Any

from drumline_contract.config import ModelConfig
from drumline_contract.config.variants import AttentionBias
from drumline_contract.shapes.hugging_face.kind import HuggingFaceError, Part, Raw

FULL, SLIDING = "full_attention", "sliding_attention"
"""Words of their `layer_types`."""


def _read_heads(raw: Raw) -> dict[str, Any]:
    """Read the heads. A head size equal to hidden / heads is read as the default."""
    heads, hidden = raw.get("num_attention_heads"), raw.get("hidden_size")
    size = raw.get("head_dim")
    # The default is written as None, so that models compare equal.
    if isinstance(heads, int) and isinstance(size, int) and size * heads == hidden:
        size = None
    kv_heads = raw.get("num_key_value_heads")
    # Without the key all heads have their own keys and values.
    return {"head_size": size, "kv_heads": heads if kv_heads is None else kv_heads}


def heads(*, size: int | None = None) -> Part:
    """Describe how sizes and numbers of heads are read and written.

    Args:
        size: what a missing `head_dim` means; None: hidden_size / heads.
    """

    def read(raw: Raw) -> dict[str, Any]:
        return _read_heads({"head_dim": size, **raw})

    def write(config: ModelConfig) -> dict[str, Any]:
        return {"head_dim": config.features_per_head, "num_key_value_heads": config.kv_heads}

    return Part(keys=frozenset({"head_dim", "num_key_value_heads"}), read=read, write=write)


def window(*, missing: int | None) -> Part:
    """Translate `sliding_window` for all layers. transformers reads no `layer_types` there.

    Args:
        missing: value of a missing key. A null key means no window.
    """
    return Part(
        keys=frozenset({"sliding_window"}),
        read=lambda raw: _in_all_layers(raw.get("sliding_window", missing)),
        write=lambda config: {"sliding_window": config.sliding_window},
    )


def _in_all_layers(size: Any) -> dict[str, Any]:
    return {"sliding_window": size, "full_attention_every": 0}


def _read_qwen_window(raw: Raw) -> dict[str, Any]:
    """Read the window, off unless `use_sliding_window`, of layers from `max_window_layers` on."""
    # Qwen's window is off unless the file turns it on.
    size = raw.get("sliding_window", 4096) if raw.get("use_sliding_window") else None
    layers, without = raw.get("num_hidden_layers"), raw.get("max_window_layers", 28)
    if size is None or raw.get("layer_types") is not None:
        return layers_with_window(raw, size, every=0)
    # Qwen starts the window at a layer. Our setting is periodic.
    if not isinstance(layers, int) or not isinstance(without, int) or 0 < without < layers:
        raise HuggingFaceError(
            f"config.json: max_window_layers is {without!r} of {layers!r} layers; a sliding_window"
            " can be imported for all layers, or for all but every n-th"
        )
    return layers_with_window(raw, None if without else size, every=0)


def _write_qwen_window(config: ModelConfig) -> dict[str, Any]:
    if config.sliding_window is None:
        return {"use_sliding_window": False}
    return {
        "use_sliding_window": True,
        "sliding_window": config.sliding_window,
        "max_window_layers": 0,
        "layer_types": layer_types(config),
    }


_QWEN_WINDOW = frozenset({"use_sliding_window", "sliding_window", "max_window_layers"})
QWEN_WINDOW = Part(
    keys=_QWEN_WINDOW | {"layer_types"}, read=_read_qwen_window, write=_write_qwen_window
)
QWEN_MOE_WINDOW = Part(
    keys=_QWEN_WINDOW,
    read=lambda raw: _in_all_layers(
        raw.get("sliding_window", 4096) if raw.get("use_sliding_window") else None
    ),
    write=_write_qwen_window,
)
"""For all layers. transformers reads neither `max_window_layers` nor `layer_types` there."""


def layer_types(config: ModelConfig) -> list[str]:
    """Return the `layer_types` of config.json, one for each layer."""
    windows = (config.window(layer) for layer in range(config.layers))
    return [FULL if window is None else SLIDING for window in windows]


def layers_with_window(raw: Raw, size: Any, *, every: int) -> dict[str, Any]:
    """Read a window of all layers but every n-th; `layer_types` overrides `every`.

    Args:
        raw: content of config.json.
        size: window in tokens.
        every: each n-th layer has no window.

    Raises:
        HuggingFaceError: `layer_types` is malformed or not periodic.
    """
    types: Any = raw.get("layer_types")
    # The list is authoritative, since newer files have no period.
    if types is not None and size is not None:
        if not isinstance(types, list) or not {*map(str, types)} <= {FULL, SLIDING}:  # pyright: ignore[reportUnknownArgumentType] - decoded JSON
            raise HuggingFaceError(
                f"config.json: layer_types must be a list of {FULL} and {SLIDING}"
            )
        kinds = [str(kind) for kind in types]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - decoded JSON
        # The first full layer gives the period.
        every = kinds.index(FULL) + 1 if FULL in kinds else 0
        expected = [
            FULL if every and (layer + 1) % every == 0 else SLIDING for layer in range(len(kinds))
        ]
        # Other patterns cannot be expressed by one period.
        if kinds != expected:
            raise HuggingFaceError(
                "config.json: layer_types has no period; a sliding_window can be imported for all"
                " layers, or for all but every n-th"
            )
    # A period of 1 means that no layer has a window.
    if size is None or every == 1:
        return {"sliding_window": None, "full_attention_every": 0}
    return {"sliding_window": size, "full_attention_every": every}


def biases(*, missing: bool = False) -> Part:
    """Translate biases of all four projections of attention, or of none."""

    def read(raw: Raw) -> dict[str, Any]:
        has = raw.get("attention_bias", missing)
        return {"attention_bias": AttentionBias.ALL if has else AttentionBias.NONE}

    def write(config: ModelConfig) -> dict[str, Any]:
        return {"attention_bias": config.attention_bias is AttentionBias.ALL}

    return Part(keys=frozenset({"attention_bias"}), read=read, write=write)


def alternating(*, every: int, missing: int = 4096, has_pattern: bool = False) -> Part:
    """Translate a window in all layers but every n-th, as in Gemma.

    Args:
        every: the default without `layer_types` and without a pattern.
        missing: value of a missing window.
        has_pattern: whether `sliding_window_pattern` overrides `every`; other types ignore it.
    """

    def read(raw: Raw) -> dict[str, Any]:
        pattern = raw.get("sliding_window_pattern") or every
        if pattern != every and not has_pattern:
            raise HuggingFaceError(
                f"config.json: sliding_window_pattern is {pattern!r}, which"
                f" {raw.get('model_type')} does not heed in transformers; write layer_types"
            )
        return layers_with_window(raw, raw.get("sliding_window", missing), every=pattern)

    def write(config: ModelConfig) -> dict[str, Any]:
        # transformers makes a mask of windows also for a model without them, from a number.
        size = config.sliding_window or config.max_positions
        return {"sliding_window": size, "layer_types": layer_types(config)}

    keys = {"sliding_window", "sliding_window_pattern", "layer_types"}
    return Part(keys=frozenset(keys), read=read, write=write)


def caps(*, attention: float | None, logits: float | None) -> Part:
    """Describe Gemma's soft caps, and what its scores are divided by.

    Args:
        attention: what a missing cap of scores means.
        logits: logits of the head.
    """

    def read(raw: Raw) -> dict[str, Any]:
        return {
            "attention_softcap": raw.get("attn_logit_softcapping", attention),
            "logit_softcap": raw.get("final_logit_softcapping", logits),
            "query_divisor": raw.get("query_pre_attn_scalar", 256),
        }

    def write(config: ModelConfig) -> dict[str, Any]:
        return {
            "attn_logit_softcapping": config.attention_softcap,
            "final_logit_softcapping": config.logit_softcap,
            # None means the head size, which must be written as a number.
            "query_pre_attn_scalar": config.query_divisor or config.features_per_head,
        }

    keys = {"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"}
    return Part(keys=frozenset(keys), read=read, write=write)


def _read_qwen_mixture(raw: Raw) -> dict[str, Any]:
    dense: Any = raw.get("mlp_only_layers") or []
    # Only a run of first layers can be dense in our model.
    if not isinstance(dense, list) or dense != list(range(len(dense))):  # pyright: ignore[reportUnknownArgumentType] - decoded JSON
        raise HuggingFaceError(
            f"config.json: mlp_only_layers is {dense!r}; only the first layers can be dense"
        )
    normalized = raw.get("norm_topk_prob", False)
    return {"dense_layers": len(dense), "routing": {"normalized": normalized}}  # pyright: ignore[reportUnknownArgumentType] - decoded JSON


def _write_qwen_mixture(config: ModelConfig) -> dict[str, Any]:
    return {
        "norm_topk_prob": config.routing.normalized,
        "mlp_only_layers": list(range(config.dense_layers)),
    }


QWEN_MIXTURE = Part(
    keys=frozenset({"norm_topk_prob", "mlp_only_layers"}),
    read=_read_qwen_mixture,
    write=_write_qwen_mixture,
)
"""Dense layers, and whether the shares of the chosen experts are normalized to 1."""


def _read_layers_without_rope(raw: Raw) -> dict[str, Any]:
    """Read `no_rope_layers`: a 1 for each layer that turns; it may be longer than the model."""
    layers: Any = raw.get("num_hidden_layers")
    turn: Any = raw.get("no_rope_layers")
    if turn is None:
        return {"no_rope_every": raw.get("no_rope_layer_interval", 4)}
    if type(layers) is not int or not isinstance(turn, list) or len(turn) < layers:  # pyright: ignore[reportUnknownArgumentType] - decoded JSON
        raise HuggingFaceError(
            "config.json: no_rope_layers must be a list with a number for each layer"
        )
    # Some files have a longer list than the model has layers.
    turn = turn[:layers]  # pyright: ignore[reportUnknownVariableType] - decoded JSON
    every = turn.index(0) + 1 if 0 in turn else 0  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - decoded JSON
    # The list must be the period that its first 0 suggests.
    if turn != [int(not every or (layer + 1) % every != 0) for layer in range(layers)]:
        raise HuggingFaceError(
            "config.json: no_rope_layers has no period; only every n-th layer can be without"
            " rotary positions"
        )
    return {"no_rope_every": every}


def _write_layers_without_rope(config: ModelConfig) -> dict[str, Any]:
    return {"no_rope_layers": [int(config.turns(layer)) for layer in range(config.layers)]}


LAYERS_WITHOUT_ROPE = Part(
    keys=frozenset({"no_rope_layers", "no_rope_layer_interval"}),
    read=_read_layers_without_rope,
    write=_write_layers_without_rope,
)
"""SmolLM3's."""


def _read_score_multiplier(raw: Raw) -> dict[str, Any]:
    """Read the multiplier of scores; our setting is the number whose root divides them."""
    multiplier = raw.get("attention_multiplier", 1.0)
    if type(multiplier) not in {int, float} or not 0 < multiplier <= 1:
        raise HuggingFaceError(
            f"config.json: attention_multiplier is {multiplier!r}; only numbers above 0 and at"
            " most 1 can be imported"
        )
    # The bound keeps the square within exact integers of a float.
    divisor = round(min(1 / multiplier, 2.0**26) ** 2)
    # A multiplier that is no inverse root cannot be restored exactly.
    if not math.isclose(divisor**-0.5, multiplier, rel_tol=1e-6):
        raise HuggingFaceError(
            f"config.json: attention_multiplier is {multiplier!r}; only 1 / √n of a whole n can be"
            " imported"
        )
    return {"query_divisor": divisor}


def _write_score_multiplier(config: ModelConfig) -> dict[str, Any]:
    return {"attention_multiplier": (config.query_divisor or config.features_per_head) ** -0.5}


SCORE_MULTIPLIER = Part(
    keys=frozenset({"attention_multiplier"}),
    read=_read_score_multiplier,
    write=_write_score_multiplier,
)
"""Granite's."""
