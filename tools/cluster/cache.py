"""The folder that keeps whatever is slow to make, and the error for a tool that lacks."""

from __future__ import annotations

import os
from pathlib import Path


class MissingToolError(RuntimeError):
    """A tool that this machine lacks; the message names it and the way to get it."""


def cache_dir() -> Path:
    """Return the folder that all checkouts share (XDG cache)."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "drumline"
