"""The signing keys that job tokens are derived from: the current one, and the one before it.

A gang's token follows from the key it was admitted under: all its pods and the operator share it
until the gang gives its nodes back. `status.signingKey` names that key, so that the key can be
changed while jobs run: new gangs get the current key, older ones go on with the previous one.

    key A alone        gang 1 admitted: signingKey a
    key B, previous A  gang 1 is spoken to with A; gang 2 admitted: signingKey b
    key B alone        once no gang of A is left
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from drumline_contract import sign

ID_CHARACTERS = 8


class KeyState(StrEnum):
    """What the operator knows of the key that a gang was admitted under."""

    CURRENT = "current"
    PREVIOUS = "previous"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKeys:
    """The keys of one operator process.

    Attributes:
        current: gangs are admitted under it.
        previous: gangs that were admitted under it go on; None where there is none.
    """

    current: bytes
    previous: bytes | None = None

    @property
    def current_id(self) -> str:
        """What `status.signingKey` says of a gang that is admitted now."""
        return key_id(self.current)

    def of(self, name: str | None) -> bytes:
        """The key of this name; of a gang without one the oldest, for an unknown name the current.

        Gangs were admitted without a name before names were written, so before any change of keys.
        """
        if self.previous is not None and name in {None, key_id(self.previous)}:
            return self.previous
        return self.current

    def state(self, name: str | None) -> KeyState:
        """Whether the key of this name is here."""
        if name is not None and name not in {self.current_id, key_id(self.of(name))}:
            return KeyState.MISSING
        return KeyState.CURRENT if self.of(name) == self.current else KeyState.PREVIOUS


def key_id(key: bytes) -> str:
    """A public name of a key, from which the key does not follow."""
    return sign(key, b"signing-key-id")[:ID_CHARACTERS]
