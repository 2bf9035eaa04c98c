"""The number of a membership: which attempt of which generation."""

from __future__ import annotations

Membership = tuple[int, int]
"""(generation, attempt), compared lexicographically: lower ones are stale."""

NO_MEMBERSHIP: Membership = (0, -1)
"""Below every membership of a gang."""
