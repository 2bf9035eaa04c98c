"""How much the property tests try: a seeded slice, or all of it on demand."""

from __future__ import annotations

import os

ALL = os.environ.get("DRUMLINE_PROPERTIES") == "all"
"""`make test-all WHAT=properties`."""


def many(slice_of: int, everything: int) -> int:
    """The number of cases of this run."""
    return everything if ALL else slice_of
