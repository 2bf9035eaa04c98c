"""Pipelines that transformers 5 builds anew for the class of a tokenizer.

These classes take the vocabulary and the merges of tokenizer.json. The rest comes from the class
and tokenizer_config.json:

- Llama's have no normalizer. So a text after a special token begins without the space that the
  normalizer of older files writes there.
- Byte-level ones begin with a space only if `add_prefix_space` asks for it.

https://github.com/huggingface/transformers/blob/main/src/transformers/models/auto/tokenization_auto.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from drumline_contract.buckets.path import AnyPath
from drumline_trainer.data.records.template_files import model_settings_of, tokenizer_settings_of

_SPACE: Final = "\u2581"
_LLAMA: Final = "LlamaTokenizer"
_METASPACE: Final = frozenset({_LLAMA, "CodeLlamaTokenizer"})
_QWEN: Final = "Qwen2Tokenizer"
_BYTE_LEVEL: Final = frozenset({_QWEN, "GPT2Tokenizer", "GPTNeoXTokenizer", "CohereTokenizer"})
_AS_SAVED: Final = frozenset(
    {"granite", "mistral", "mixtral", "olmo2", "olmo3", "phi3", "phimoe", "stablelm"}
)
"""Model types for which the file is taken as it is, whatever class it names."""


def build_anew(tokenizer: Any, *, folder: AnyPath) -> None:
    """Replace the pipeline of a tokenizer where transformers does so.

    Args:
        tokenizer: what tokenizer.json describes.
        folder: folder of that file, with the settings of the tokenizer and the model.

    Raises:
        ConfigError: a file of the folder cannot be read.
    """
    from tokenizers import models  # noqa: PLC0415 - optional package

    settings = tokenizer_settings_of(folder)
    name = _class_of(settings, model=model_settings_of(folder))
    if not isinstance(tokenizer.model, models.BPE):
        return
    if name in _METASPACE and not _is_byte_level(tokenizer):
        _build_llama(tokenizer, name=name, settings=settings)
    elif name in _BYTE_LEVEL:
        _set_prefix_space(tokenizer, wanted=bool(settings.get("add_prefix_space")))


def _class_of(settings: Mapping[str, Any], *, model: Mapping[str, Any]) -> str:
    """Return the class that transformers uses, or an empty text where the file decides."""
    kind = model.get("model_type")
    if "auto_map" in settings or kind in _AS_SAVED:
        return ""
    if kind == "qwen2":
        return _QWEN
    return str(settings.get("tokenizer_class") or model.get("tokenizer_class")).removesuffix("Fast")


def _build_llama(tokenizer: Any, *, name: str, settings: Mapping[str, Any]) -> None:
    from tokenizers import decoders, pre_tokenizers  # noqa: PLC0415 - optional package

    scheme = "first"
    if settings.get("add_prefix_space") is False:
        scheme = "never"
    elif name == _LLAMA and settings.get("legacy"):
        scheme = "always"
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, prepend_scheme=scheme, split=False)
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if scheme != "never":
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.model.fuse_unk = tokenizer.model.byte_fallback = True


def _set_prefix_space(tokenizer: Any, *, wanted: bool) -> None:
    from tokenizers import pre_tokenizers  # noqa: PLC0415 - optional package

    whole = tokenizer.pre_tokenizer
    parts = whole if isinstance(whole, pre_tokenizers.Sequence) else [whole]
    for part in parts:
        if isinstance(part, pre_tokenizers.ByteLevel):
            part.add_prefix_space = wanted


def _is_byte_level(tokenizer: Any) -> bool:
    """Return whether the pre-tokenizer or the decoder works on bytes."""
    return any("ByteLevel" in repr(part) for part in (tokenizer.pre_tokenizer, tokenizer.decoder))
