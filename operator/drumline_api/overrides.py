"""`spec.trainer.overrides`: the only field whose content no schema bounds, so it stays text.

The API server accepts any JSON there, up to what etcd stores, 10,000 levels deep. It is kept as it
came, as bytes, and only decoded after its size and its depth are known to be small.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

MAX_BYTES: Final = 16 * 1024
MAX_DEPTH: Final = 16
"""The trainer's configuration is four levels deep."""
_BRACKETS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]')


class OverridesError(ValueError):
    """Overrides that cannot be decoded; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Overrides as JSON text that nobody has looked into."""

    size_bytes: int
    text: bytes
    """Empty where it was over `MAX_BYTES`: what is refused need not be kept."""

    @classmethod
    def of_json(cls, text: bytes) -> Overrides:
        """Overrides as the API server sends them. O(1) but for the copy of at most `MAX_BYTES`."""
        return cls(size_bytes=len(text), text=text if len(text) <= MAX_BYTES else b"")

    @classmethod
    def of(cls, value: object) -> Overrides:
        """Overrides of any origin: kept as they are, or an object that somebody decoded already.

        Raises:
            OverridesError: it is no object, or nothing that JSON could spell.
        """
        if isinstance(value, Overrides):
            return value
        if not isinstance(value, Mapping):
            raise OverridesError("must be an object")
        try:
            text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        except RecursionError:
            raise OverridesError(f"nested more than {MAX_DEPTH} levels deep") from None
        except (TypeError, ValueError) as error:
            raise OverridesError(f"not JSON: {error}") from None
        return cls.of_json(text.encode(errors="replace"))

    def decoded(self) -> dict[str, Any]:
        """The object.

        Raises:
            OverridesError: it is larger than `MAX_BYTES`, deeper than `MAX_DEPTH`, or no object.
        """
        if self.size_bytes > MAX_BYTES:
            raise OverridesError(f"{self.size_bytes} bytes as JSON is over {MAX_BYTES}")
        if not _is_shallow(self.text):
            raise OverridesError(f"nested more than {MAX_DEPTH} levels deep")
        try:
            value: object = json.loads(self.text)
        except ValueError as error:  # digits of a number beyond what Python reads among them
            raise OverridesError(f"not JSON: {error}") from None
        if not isinstance(value, dict):
            raise OverridesError("must be an object")
        return cast("dict[str, Any]", value)


def _is_shallow(text: bytes) -> bool:
    """Whether no value lies deeper than `MAX_DEPTH`. Iterative, one step a bracket or string."""
    depth = 0
    for token in _BRACKETS.finditer(text):
        match token[0]:
            case b"{" | b"[":
                depth += 1
                if depth > MAX_DEPTH:
                    return False
            case b"}" | b"]":
                depth -= 1
            case _:
                pass
    return True
