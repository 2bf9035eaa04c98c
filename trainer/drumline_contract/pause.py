"""The time for which a gang shows no sign of work, and the limit above which it is idle.

longest pause of late 2.1 s     idle after 2 x 2.1 + 60 = 64.2 s
a line every 200 steps, 300 s   idle after 660 s
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from drumline_contract import json_fields as read

IDLE_FACTOR: Final = 2.0
IDLE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """The present pause of one rank, or of all ranks of a gang together."""

    seconds: float
    """Since the last sign of work; 0 in a phase that may take long."""
    usual_seconds: float
    """The longest pause of late that ended by itself; 0: nothing was learned."""

    @property
    def idle_after_seconds(self) -> float:
        """A longer pause is none of its usual ones."""
        return IDLE_FACTOR * self.usual_seconds + IDLE_SECONDS

    @property
    def is_idle(self) -> bool:
        """True if the usual pause is known and this one exceeds the limit."""
        return self.usual_seconds > 0 and self.seconds > self.idle_after_seconds


def optional_pause(raw: dict[str, Any]) -> Pause | None:
    """Decode the pause in a message. None: the agent is too old to report it.

    Raises:
        ContractError: the pause is malformed.
    """
    fields = read.optional_nested(raw, "pause")
    if fields is None:
        return None
    return Pause(
        seconds=max(0.0, read.number(fields, "seconds")),
        usual_seconds=max(0.0, read.number(fields, "usual_seconds")),
    )
