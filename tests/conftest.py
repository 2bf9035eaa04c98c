"""What all tests share: how Hypothesis judges time.

It fails an example that takes longer than 200 ms, or data that is slow to make. On a machine that
others use either happens to sound code.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy machine")
