"""How much of the large samples is tried: a slice, or all when asked for."""

from __future__ import annotations

import os

ALL = os.environ.get("DRUMLINE_SAMPLES") == "all"
DAMAGES = 200 if ALL else 20
"""Flipped bits and cut files of one checkpoint, of each of three layouts."""
RECOVERIES = 50 if ALL else 25
"""In a row, of the same processes."""
