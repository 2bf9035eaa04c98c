"""The number of a membership, and bounds on the messages between agents."""

from __future__ import annotations

from typing import Final

MAX_RANKS: Final = 1024
"""In one pod."""
MAX_MESSAGE_BYTES: Final = 1 << 20


Membership = tuple[int, int]
"""(generation, attempt), compared lexicographically: lower ones are stale."""

NO_MEMBERSHIP: Membership = (0, -1)
"""Below every membership of a gang."""
