"""`data.mixture`: folders below the source, and how much of each.

chats=0.7,math=0.3       of ten samples seven are of chats, whatever the sizes of both
chats=2x,math=0.5x       two epochs of chats for half an epoch of math
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from drumline_contract.config.errors import ConfigError

_MAX_PARTS: Final = 64
_MAX_CHARACTERS: Final = 4096
_PART: Final = re.compile(
    r"(?P<name>[\w.-]+(?:/[\w.-]+)*)=(?P<amount>\d{1,9}(?:\.\d{1,9})?)(?P<epochs>x?)", re.ASCII
)
_FORM: Final = "must be folders below data.source with amounts, as chats=0.7,math=0.3"


@dataclass(frozen=True, slots=True, kw_only=True)
class MixturePart:
    """One of the sources."""

    name: str
    """Path below `data.source`."""
    amount: float
    """A weight beside those of the others, or epochs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixturePlan:
    """A decoded mixture."""

    parts: tuple[MixturePart, ...]
    by_epochs: bool
    """Amounts are epochs of a part for one of the whole."""

    def shares(self, windows: tuple[int, ...]) -> tuple[float, ...]:
        """Return each part's share of all samples.

        Args:
            windows: number of windows of each part.
        """
        amounts = [
            part.amount * (count if self.by_epochs else 1)
            for part, count in zip(self.parts, windows, strict=True)
        ]
        return tuple(amount / sum(amounts) for amount in amounts)


def parsed_mixture(text: str) -> MixturePlan:
    """Decode `data.mixture`.

    Raises:
        ConfigError: the text is not a valid mixture.
    """
    if len(text) > _MAX_CHARACTERS:
        raise ConfigError(f"data.mixture: at most {_MAX_CHARACTERS} characters, not {len(text)}")
    matches = [_PART.fullmatch(part.strip()) for part in text.split(",")]
    understood = [match for match in matches if match is not None]
    if len(understood) < len(matches):
        raise ConfigError(f"data.mixture: {_FORM}, not {text[:64]!r}")
    parts = tuple(
        MixturePart(name=match["name"], amount=float(match["amount"])) for match in understood
    )
    if not 2 <= len(parts) <= _MAX_PARTS:
        raise ConfigError(f"data.mixture: mixes 2 to {_MAX_PARTS} folders, not {len(parts)}")
    if len({bool(match["epochs"]) for match in understood}) > 1:
        raise ConfigError("data.mixture: all amounts are weights, or all are epochs (2x)")
    for part in parts:
        if ".." in part.name.split("/"):
            raise ConfigError("data.mixture: must not contain '..'")
        if not part.amount or not math.isfinite(part.amount):
            raise ConfigError(f"data.mixture: {part.name} has no part in it; leave it out")
    if len({part.name for part in parts}) < len(parts):
        raise ConfigError("data.mixture: names a folder twice")
    return MixturePlan(parts=parts, by_epochs=bool(understood[0]["epochs"]))
