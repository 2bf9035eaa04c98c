"""The words for an expected start."""

from __future__ import annotations

import pytest

from drumline_cli.start_text import start_text

NOW = 1000.0


@pytest.mark.parametrize(
    ("early", "late", "reason", "text"),
    [
        (180, 240, "QuotaExhausted", "in 3 min to 4 min"),
        (180, 180, "QuotaExhausted", "in 3 min"),
        (180, None, "QuotaExhausted", "in 3 min or later"),
        (-60, 120, "QuotaExhausted", "within 2 min"),
        (-600, -120, "QuotaExhausted", "not known: was expected 2 min ago"),
        (-600, None, "QuotaExhausted", "not known: was expected 10 min ago"),
        (None, None, "QuotaExhausted", "not known: no end of the jobs before it is known"),
        (None, None, "WaitingForNodes", "not known: WaitingForNodes"),
        (None, None, "", "not known"),
        (180, 240, "QueueHeld", "not before a change: QueueHeld"),
    ],
)
def test_a_start_is_a_band_or_the_reason_why_it_is_not_known(
    early: float | None, late: float | None, reason: str, text: str
) -> None:
    moments = (None if each is None else NOW + each for each in (early, late))
    assert start_text(*moments, now=NOW, reason=reason) == text
