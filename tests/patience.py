"""How long tests wait for something to happen.

Only a hang takes as long. A test that waits passes as soon as the event comes, on a slow machine
too, so no test chooses a shorter bound. The timeout of pytest (pyproject.toml) is longer.
"""

from __future__ import annotations

HANG_SECONDS = 900.0
