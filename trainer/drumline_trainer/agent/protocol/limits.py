"""Bounds on the messages between agents."""

from __future__ import annotations

from typing import Final

MAX_RANKS: Final = 1024
"""In one pod."""
MAX_MESSAGE_BYTES: Final = 1 << 20
