"""The language model inside a multimodal one, as Gemma 3 is published from 4B on.

Its config.json has one of a language model inside, and its tensors lie beside those of the vision
tower. Only the language model is read, and what is written is a model of text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, cast

from drumline_trainer.shapes.hugging_face.kind import HuggingFaceError, Raw

_OUTER: Final = {
    "gemma3": {
        "model_type": "gemma3_text",
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
    }
}
"""Their model type, and what is missing inside: there only what differs from this is written."""
_OF_BOTH: Final = ("bos_token_id", "eos_token_id", "pad_token_id", "quantization_config")
_EARLIER, _LATER = "language_model.", "model.language_model."
_VISION: Final = tuple(
    f"{before}{part}."
    for before in ("", "model.")
    for part in ("vision_tower", "multi_modal_projector")
)


def language_part(raw: Raw) -> dict[str, Any]:
    """The config.json of its language model; any other config.json as it is.

    Raises:
        HuggingFaceError: it must have one inside, and has none.
    """
    missing = _OUTER.get(str(raw.get("model_type")))
    if missing is None:
        return dict(raw)
    inside = raw.get("text_config")
    if not isinstance(inside, Mapping):
        raise HuggingFaceError("config.json: text_config must be an object")
    values = {**missing, **cast("Raw", inside)}
    values.pop("architectures", None)  # of the checkpoint that it was begun from
    return values | {key: raw[key] for key in _OF_BOTH if key in raw}


class LanguageNames:
    """How the tensors of the language model are called in a folder that may hold a vision tower."""

    def __init__(self, stored: Collection[str]) -> None:
        inside = (prefix for prefix in (_EARLIER, _LATER) if _any_with(prefix, stored))
        self._prefix = next(inside, "")

    def stored(self, name: str) -> str:
        """The name in the files of what a model of text calls so."""
        if self._prefix == _LATER and name.startswith("model."):
            return _LATER + name.removeprefix("model.")
        return _EARLIER + name if self._prefix == _EARLIER else name

    def is_beside(self, stored: str) -> bool:
        """Whether a tensor in the files is none of the language model."""
        return bool(self._prefix) and stored.startswith(_VISION)


def _any_with(prefix: str, names: Collection[str]) -> bool:
    return any(name.startswith(prefix) for name in names)
