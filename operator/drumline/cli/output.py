"""What every command returns: the text it prints and the exit code of the process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a command prints, and the exit code it ends with."""

    text: str
    exit_code: int = 0
