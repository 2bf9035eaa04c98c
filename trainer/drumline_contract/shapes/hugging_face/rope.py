"""Their keys of rotary positions, from every place where versions of `transformers` keep them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

from drumline_contract.config import ModelConfig
from drumline_contract.config.rope import RopeScaling, RopeScalingKind
from drumline_contract.shapes.hugging_face.kind import HuggingFaceError, Part, Raw

_FIELDS: dict[RopeScalingKind, dict[str, str]] = {
    RopeScalingKind.LINEAR: {"factor": "factor"},
    RopeScalingKind.LLAMA3: {
        "factor": "factor",
        "low_freq_factor": "low_frequency_factor",
        "high_freq_factor": "high_frequency_factor",
        "original_max_position_embeddings": "original_positions",
    },
    RopeScalingKind.YARN: {
        "factor": "factor",
        "original_max_position_embeddings": "original_positions",
    },
    RopeScalingKind.LONGROPE: {
        "factor": "factor",
        "original_max_position_embeddings": "original_positions",
        "short_factor": "short_factors",
        "long_factor": "long_factors",
    },
}
"""Their key -> our field; none may be missing."""
_OF_YARN = {"beta_fast": "beta_fast", "beta_slow": "beta_slow", "truncate": "whole_pairs"}
"""These may."""
_LISTS = ("short_factor", "long_factor")
_MAGNITUDES = ("attention_factor", "mscale", "mscale_all_dim")
_KEYS = frozenset({"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"})


def of_sections(read: Callable[[Raw, Raw], dict[str, Any]]) -> Callable[[Raw], dict[str, Any]]:
    """Return a reader of config.json that passes the section of rotary positions to `read`.

    transformers 5 writes `rope_parameters`, earlier versions `rope_scaling`. If a file has both,
    transformers 5 ignores the first, also its base. So both must mean the same.

    Args:
        read: translates config.json and its section; an empty one means that there is none.
    """

    def read_one(raw: Raw) -> dict[str, Any]:
        newer, older = (_object(raw, key) for key in ("rope_parameters", "rope_scaling"))
        if newer and older and read(raw, newer) != read(raw, older):
            raise HuggingFaceError(
                "config.json: rope_parameters and rope_scaling describe different rotations;"
                " transformers 5 takes rope_scaling, so write all values there and remove"
                " rope_parameters"
            )
        return read(raw, newer or older)

    return read_one


def rope(*, theta: float = 10_000.0, required: bool = False, partial: bool = False) -> Part:
    """Translate rotary positions that are the same for all layers.

    Args:
        theta: value of a missing base.
        required: whether scaling must be given, because versions differ in the default.
        partial: whether a part of each head may rotate; other model types always rotate all.
    """

    def read(raw: Raw, values: Raw) -> dict[str, Any]:
        if required and not values:
            raise HuggingFaceError("config.json: rope_scaling is missing")
        # Nested objects are settings for each layer type, as in Gemma 3.
        nested = [name for name, value in values.items() if isinstance(value, dict)]
        if nested:
            raise HuggingFaceError(
                f"config.json: rope_parameters differs between layers ({', '.join(nested)}); only"
                " one for all layers can be imported"
            )
        # The share may stand in either place.
        share = values.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))
        if share != 1 and not partial:
            raise HuggingFaceError(
                f"config.json: partial_rotary_factor is {share!r}, which {raw.get('model_type')}"
                " does not heed in transformers; only 1 can be imported"
            )
        return {
            # The section overrides the top-level key, as in transformers.
            "rope_theta": values.get("rope_theta", raw.get("rope_theta", theta)),
            "rope_share": share,
            "rope_scaling": _scaling(values),
        }

    def write(config: ModelConfig) -> dict[str, Any]:
        share = {} if config.rope_share == 1 else {"partial_rotary_factor": config.rope_share}
        scaling = _write_scaling(config.rope_scaling)
        if required and not scaling:
            # An explicit default tells readers that no scaling applies.
            scaling = {"rope_scaling": {"rope_type": "default"}}
        return {"rope_theta": config.rope_theta, **share, **scaling}

    return Part(keys=_KEYS, read=of_sections(read), write=write)


_PHI_ORIGINAL = "original_max_position_embeddings"
_EARLIER_NAMES = ("su", "yarn")
"""Names of longrope in the first config.json of Phi-3."""
_PHI_LONGEST = 4096
"""Default of both lengths in Phi-3."""


def phi_rope() -> Part:
    """Describe one rotation for all layers; the original length beside its section overrules it."""
    plain = rope(partial=True)

    def read(raw: Raw, values: Raw) -> dict[str, Any]:
        raw = {**raw, "rope_parameters": values, "rope_scaling": None}
        kind = values.get("rope_type", values.get("type"))
        # Other kinds need no original length beside the section.
        if kind not in (RopeScalingKind.LONGROPE, *_EARLIER_NAMES):
            return plain.read(raw)
        # The key beside the section overrules the one in it.
        original = raw.get(_PHI_ORIGINAL, _PHI_LONGEST)
        scaling = {**values, "rope_type": RopeScalingKind.LONGROPE.value, _PHI_ORIGINAL: original}
        # Phi-3 derives the factor from both lengths.
        if scaling.get("factor") is None:
            longest = raw.get("max_position_embeddings", _PHI_LONGEST)
            if not all(type(size) is int and size > 0 for size in (longest, original)):
                raise HuggingFaceError(
                    f"config.json: max_position_embeddings and {_PHI_ORIGINAL} must be positive"
                )
            scaling["factor"] = longest / original
        return plain.read({**raw, "rope_parameters": scaling})

    def write(config: ModelConfig) -> dict[str, Any]:
        scaling, values = config.rope_scaling, plain.write(config)
        if scaling is None or scaling.kind is not RopeScalingKind.LONGROPE:
            return values
        return {**values, _PHI_ORIGINAL: scaling.original_positions}

    return Part(keys=_KEYS | {_PHI_ORIGINAL}, read=of_sections(read), write=write)


def _read_of_gemma_3(raw: Raw) -> dict[str, Any]:
    # Two sections: layers with full attention, and layers with a window.
    sections = _object(raw, "rope_parameters")
    everywhere, windows = (_object(sections, f"{kind}_attention") for kind in ("full", "sliding"))
    if flat := sections.keys() - {"full_attention", "sliding_attention"}:
        raise HuggingFaceError(
            f"config.json: rope_parameters has {min(flat)}, which transformers does not read there"
            " in gemma3_text; write it in full_attention or in sliding_attention"
        )
    # Older files have one section, for the layers with full attention.
    everywhere |= _object(raw, "rope_scaling")
    for section in (everywhere, windows):
        if "type" in section and "rope_type" not in section:
            raise HuggingFaceError(
                "config.json: rope_scaling has type and no rope_type; transformers 5 ignores type"
                " in gemma3_text, so write rope_type"
            )
    if everywhere.get("truncate") is False:
        raise HuggingFaceError(
            "config.json: truncate of full_attention is False, which transformers does not read in"
            " gemma3_text; remove it"
        )
    # Our model has one scaling, and Gemma scales only the layers that see everything.
    if _scaling(windows) is not None:
        raise HuggingFaceError(
            "config.json: rope_parameters of sliding_attention are scaled; only those of"
            " full_attention can be"
        )
    return {
        "rope_theta": everywhere.get("rope_theta", raw.get("rope_theta", 1_000_000.0)),
        "window_rope_theta": windows.get("rope_theta", raw.get("rope_local_base_freq", 10_000.0)),
        "rope_scaling": _scaling(everywhere),
    }


def _write_of_gemma_3(config: ModelConfig) -> dict[str, Any]:
    return {
        "rope_theta": config.rope_theta,
        # transformers cannot build a null base.
        "rope_local_base_freq": config.window_rope_theta or config.rope_theta,
        **_write_scaling(config.rope_scaling),
    }


GEMMA_3_ROPE = Part(
    keys=_KEYS - {"partial_rotary_factor"} | {"rope_local_base_freq"},
    read=_read_of_gemma_3,
    write=_write_of_gemma_3,
)
"""Layers with a window have a base of their own."""


def _object(raw: Raw, key: str) -> dict[str, Any]:
    """Return the object of a key. Empty: there is none. Raises HuggingFaceError."""
    values: Any = raw.get(key) or {}
    if not isinstance(values, dict):
        raise HuggingFaceError(f"config.json: {key} must be an object or null")
    return {**cast("dict[str, Any]", values)}


def _scaling(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Translate to our section `rope_scaling`; `type` is an older word for `rope_type`."""
    # Files before transformers 4.43 write `type`.
    kind = values.get("rope_type", values.get("type", "default"))
    known = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
    if kind == "default":
        # Unknown keys are refused, because they could change the rotation.
        _refuse_unknown(values, known)
        return None
    if kind not in list(RopeScalingKind):
        kinds = ", ".join(("default", *RopeScalingKind))
        raise HuggingFaceError(
            f"config.json: rope_scaling is of type {kind!r}; only {kinds} can be imported"
        )
    kind = RopeScalingKind(kind)
    # A missing value has no safe default, since versions differ.
    missing = [name for name in _FIELDS[kind] if values.get(name) is None]
    if missing:
        raise HuggingFaceError(f"config.json: rope_scaling lacks {', '.join(sorted(missing))}")
    ours = {name: values[theirs] for theirs, name in _FIELDS[kind].items()}
    known |= _FIELDS[kind].keys()
    if kind is RopeScalingKind.LONGROPE:
        known.add("attention_factor")
        ours |= {_FIELDS[kind][name]: _joined(values[name], name) for name in _LISTS}
        ours["magnitude"] = values.get("attention_factor")
    elif kind is RopeScalingKind.YARN:
        known |= {*_OF_YARN, *_MAGNITUDES}
        given = {theirs: values.get(theirs) for theirs in _OF_YARN}
        # null means the default, as a missing key does.
        ours |= {_OF_YARN[theirs]: value for theirs, value in given.items() if value is not None}
        ours["magnitude"] = _magnitude(values)
    # Some files repeat the original length where no code reads it.
    elif values.get("original_max_position_embeddings") is not None:
        known.add("original_max_position_embeddings")  # of no effect where it is not read
    _refuse_unknown(values, known)
    return {"kind": kind.value, **ours}


def _joined(factors: object, name: str) -> str:
    """Join numbers to the text of our settings, from which they can be read back exactly.

    Raises:
        HuggingFaceError: it is not a list of numbers.
    """
    numbers = cast("list[object]", factors) if isinstance(factors, list) else []
    if not numbers or not all(type(number) in {int, float} for number in numbers):
        raise HuggingFaceError(f"config.json: {name} of rope_scaling must be a list of numbers")
    # repr gives the shortest text that reads back as the same float.
    return ",".join(repr(float(cast("float", number))) for number in numbers)


def _magnitude(values: Mapping[str, Any]) -> float:
    """Return yarn's factor of rotated queries and keys.

    Raises:
        HuggingFaceError: a value is not a number or null.
    """
    given, *scales = (values.get(name) for name in _MAGNITUDES)
    numbers = (values["factor"], given or 1.0, *(scale or 1.0 for scale in scales))
    if not all(isinstance(number, int | float) for number in numbers):
        names = ", ".join(("factor", *_MAGNITUDES))
        raise HuggingFaceError(f"config.json: {names} of rope_scaling must be numbers or null")
    # An explicit factor overrides both scales.
    if given is not None:
        return given
    # The quotient of both growths is 1 if the scales agree, as in DeepSeek.
    if all(scales):
        above, below = (_longer(values["factor"], float(scale or 1)) for scale in scales)
        return above / below
    return _longer(values["factor"], 1.0)


def _longer(factor: float, scale: float) -> float:
    """Return how much longer contexts scale scores (Peng et al. 2023, equation 22)."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _refuse_unknown(values: Mapping[str, Any], known: set[str]) -> None:
    for key, value in values.items():
        if key not in known and value is not None:
            raise HuggingFaceError(
                f"config.json: {key} of rope_scaling is {value!r}, which is not known here and may"
                " change what the model computes"
            )


def _write_scaling(scaling: RopeScaling | None) -> dict[str, Any]:
    """Write the section under the key that all versions of transformers read."""
    if scaling is None:
        return {}
    values = {theirs: getattr(scaling, ours) for theirs, ours in _FIELDS[scaling.kind].items()}
    # `rope_scaling` is read by all versions, `rope_parameters` by newer ones only.
    if scaling.kind is RopeScalingKind.YARN:
        values |= {theirs: getattr(scaling, ours) for theirs, ours in _OF_YARN.items()}
        values["attention_factor"] = scaling.multiplier
    if scaling.kind is RopeScalingKind.LONGROPE:
        values |= {name: scaling.pair_factors(long=name == "long_factor") for name in _LISTS}
        if scaling.magnitude is not None:
            values["attention_factor"] = scaling.magnitude
    return {"rope_scaling": {"rope_type": scaling.kind.value, **values}}
