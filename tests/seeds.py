"""Seeds of the slices that one run takes of the big matrices: another slice every day.

The runner prints them; a variable of the environment repeats a run: `LAYOUT_SEED=739578 make
test PART=layouts`.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime


def seed_of_the_day(variable: str) -> int:
    """What the environment variable says, else the number of the day (UTC)."""
    given = os.environ.get(variable)
    return int(given) if given else datetime.now(UTC).toordinal()
