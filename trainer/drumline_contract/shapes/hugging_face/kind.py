"""Description of one Hugging Face model type: the field of each key, and required values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from drumline_contract.config import ConfigError, ModelConfig


class HuggingFaceError(ConfigError):
    """A folder that cannot be read, or a model that has no layout there; says which part."""


Raw = Mapping[str, Any]
"""A config.json, decoded; or fields of ours, on their way to a `ModelConfig`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Keys that are translated together, in both directions."""

    keys: frozenset[str]
    """All config.json keys that `read` uses."""
    read: Callable[[Raw], dict[str, Any]]
    """Translates config.json keys to fields of `ModelConfig`. Raises HuggingFaceError."""
    write: Callable[[ModelConfig], dict[str, Any]]
    """Translates a `ModelConfig` to config.json keys."""


class TensorNames(StrEnum):
    """Naming scheme of a model type's tensors. `models.hugging_face.names` implements each."""

    LLAMA = "llama"
    MIXTRAL = "mixtral"
    GPT2 = "gpt2"
    PHI = "phi"
    OLMO = "olmo"
    GEMMA = "gemma"
    GPT_OSS = "gpt_oss"
    VIT = "vit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One of their model types."""

    model_type: str
    architecture: str
    names: TensorNames = TensorNames.LLAMA
    fields: Mapping[str, str]
    """Their key -> our field."""
    fixed: Raw
    """Their key -> the only value we can be, which is also what a missing key means."""
    meaning: Raw = field(default_factory=dict[str, Any])
    """Their key -> what it means where it is missing."""
    ours: Raw = field(default_factory=dict[str, Any])
    """Our field -> the value it always has."""
    parts: tuple[Part, ...] = ()
    ignored: frozenset[str] = frozenset()
    """Their keys that change nothing with the values that are fixed."""
    further_layers: str = ""
    """Their key of how many layers behind the last predict further tokens: those are left out."""
    unpacked: tuple[str, ...] = ()
    """Ways in which their weights may be packed (`quant_method`) that can be read."""

    @property
    def known(self) -> frozenset[str]:
        """All keys that are translated, fixed or of no effect."""
        keys = {*self.fields, *self.fixed, *self.ignored, self.further_layers}
        return frozenset(keys).union(*(part.keys for part in self.parts))
