"""Define the result of a conversion: a job, and the fate of every input field."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Json = dict[str, Any]


class Fate(StrEnum):
    """Fate of a field."""

    CARRIED = "carried over"
    LEFT_OUT = "left out"
    CHECK = "look at"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A field of the input, and the outcome of its conversion."""

    fate: Fate
    path: str
    """In the input, as `kubectl explain` spells it; of a script `line 3: --mem`."""
    text: str
    """Target field, reason for leaving it out, or point to check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """A TrainingJob that does what the input did, as far as the notes say."""

    job: Json
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Values from the user that the input lacks."""

    queue: str | None = None
    image: str | None = None


@dataclass(frozen=True, slots=True)
class Notes:
    """Notes as they are made, in order."""

    made: list[Note] = field(default_factory=list[Note])

    def carried(self, path: str, to: str) -> None:
        """Record that the field at `path` is at `to` of the TrainingJob."""
        self.made.append(Note(fate=Fate.CARRIED, path=path, text=to))

    def left_out(self, path: str, why: str) -> None:
        """Record that the field at `path` is not in the TrainingJob."""
        self.made.append(Note(fate=Fate.LEFT_OUT, path=path, text=why))

    def check(self, path: str, text: str) -> None:
        """Somebody should look at what came of the field at `path`."""
        self.made.append(Note(fate=Fate.CHECK, path=path, text=text))


class ConversionError(Exception):
    """Input of which no TrainingJob can be made.

    Attributes:
        path: the field to change.
    """

    def __init__(self, *, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
