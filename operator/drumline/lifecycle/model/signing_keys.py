"""Signing keys from which job tokens are derived: the current key, and the previous one.

A gang's token is derived from the key of its admission. All its pods and the operator share it
until the gang gives its nodes back. `status.signingKey` names that key, so that the key can be
changed while jobs run. New gangs get the current key, and older ones continue with the previous
one.

    key A alone        gang 1 admitted: signingKey a
    key B, previous A  gang 1 still uses A; gang 2 admitted: signingKey b
    key B alone        once no gang of A remains
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from drumline_contract import sign

ID_CHARACTERS = 8


class KeyState(StrEnum):
    """State of the key that a gang was admitted under."""

    CURRENT = "current"
    PREVIOUS = "previous"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKeys:
    """The keys of one operator process.

    Attributes:
        current: key of new gangs.
        previous: key of gangs that were admitted earlier. None if there is none.
    """

    current: bytes
    previous: bytes | None = None

    @property
    def current_id(self) -> str:
        """Return `status.signingKey` of a gang that is admitted now."""
        return key_id(self.current)

    def of(self, name: str | None) -> bytes:
        """Return the key of this name. Without a name the oldest, for an unknown name the current.

        Gangs had no name before names were written, so before any change of keys.
        """
        # Without a previous key every gang uses the current one, also an unnamed gang.
        if self.previous is not None and name in {None, key_id(self.previous)}:
            return self.previous
        return self.current

    def state(self, name: str | None) -> KeyState:
        """Return whether the key of this name is present."""
        if name is not None and name not in {self.current_id, key_id(self.of(name))}:
            return KeyState.MISSING
        return KeyState.CURRENT if self.of(name) == self.current else KeyState.PREVIOUS


def key_id(key: bytes) -> str:
    """Return a public name of a key, from which the key cannot be derived."""
    return sign(key, b"signing-key-id")[:ID_CHARACTERS]
