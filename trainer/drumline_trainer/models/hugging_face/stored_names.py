"""Under which names a folder keeps the tensors of a model: publishers leave prefixes out.

What belongs to no part of ours is left alone where it is known what it is, and refused elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from drumline_trainer.config import ModelConfig
from drumline_trainer.models.hugging_face.names import Theirs
from drumline_trainer.shapes.hugging_face import HuggingFaceError, LanguageNames

_NOT_WEIGHTS: Final = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
"""Constants that older versions stored: masks and the frequencies of rotary positions."""
_ENCODER: Final = "vit."
_POOLER: Final = ("pooler.dense.weight", "pooler.dense.bias")


class _EncoderNames:
    """How the tensors of the encoder are called in a folder that may hold nothing else."""

    def __init__(self, stored: Collection[str]) -> None:
        self._alone = "embeddings.cls_token" in stored

    def stored(self, name: str) -> str:
        """The name in the files of what a model with a classifier calls so."""
        return name.removeprefix(_ENCODER) if self._alone else name

    def is_beside(self, stored: str) -> bool:
        """Whether a tensor in the files is none of the encoder: its pooler feeds other heads."""
        return self._alone and stored in _POOLER


def matched(
    names: set[str], wanted: list[Theirs], *, config: ModelConfig
) -> list[tuple[str, Theirs]]:
    """The name in the files of every tensor we need. Raises HuggingFaceError."""
    bare = "wte.weight" in names  # GPT-2 without its head, as it was first published
    language, encoder = LanguageNames(names), _EncoderNames(names)

    def stored(name: str) -> str:
        return name.removeprefix("transformer.") if bare else encoder.stored(language.stored(name))

    entries = [(stored(entry.name), entry) for entry in wanted]
    needed = {name for name, _ in entries}
    unused: set[str] = {language.stored("lm_head.weight")} if config.tied_embeddings else set()
    extra = {
        name
        for name in names - needed - unused
        if not name.endswith(_NOT_WEIGHTS)
        and not language.is_beside(name)
        and not encoder.is_beside(name)
    }
    for wrong, what in ((needed - names, "missing"), (extra, "unknown")):
        if wrong:
            listing = ", ".join(sorted(wrong)[:3]) + (" ..." if len(wrong) > 3 else "")
            raise HuggingFaceError(f"{len(wrong)} tensors are {what}: {listing}")
    return entries


def further_layers(stored: Collection[str], config: ModelConfig) -> set[str]:
    """Names of tensors of layers behind the last."""
    layers = (re.match(r"model\.layers\.([0-9]{1,9})\.", name) for name in stored)
    return {each.string for each in layers if each and int(each[1]) >= config.layers}
