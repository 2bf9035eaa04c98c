"""Hold `spec.trainer.overrides`, the only field whose content no schema bounds, as text.

The API server accepts any JSON there, up to what etcd stores, 10,000 levels deep. The text is kept
as bytes. It is decoded only after its size and depth are known to be small.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

MAX_BYTES: Final = 16 * 1024
MAX_DEPTH: Final = 16
"""Limit of nesting. The trainer's configuration is four levels deep."""
_BRACKETS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]')


class OverridesError(ValueError):
    """Overrides that cannot be decoded. The message contains the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Overrides as unparsed JSON text."""

    size_bytes: int
    text: bytes
    """Empty if the text exceeded `MAX_BYTES`: rejected text need not be kept."""

    @classmethod
    def of_json(cls, text: bytes) -> Overrides:
        """Return overrides as the API server sends them.

        O(1) except for the copy of at most `MAX_BYTES`.
        """
        return cls(size_bytes=len(text), text=text if len(text) <= MAX_BYTES else b"")

    @classmethod
    def of(cls, value: object) -> Overrides:
        """Return overrides from JSON text or from a decoded object.

        Raises:
            OverridesError: the value is not an object, or JSON cannot represent it.
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
        """Return the decoded object.

        Raises:
            OverridesError: the text is larger than `MAX_BYTES`, deeper than `MAX_DEPTH`, or not an
                object.
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
    """Return whether no value is deeper than `MAX_DEPTH`.

    Iterative, one step per bracket or string.
    """
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
