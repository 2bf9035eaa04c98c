from __future__ import annotations

import pytest

from drumline_cli import formatting


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-0.2, "0 ms"),
        (0.0144, "14 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (8.314, "8.31 s"),
        (42.04, "42.0 s"),
        (99.96, "1 min 40 s"),
        (200, "3 min 20 s"),
        (240, "4 min"),
        (7500, "2 h 5 min"),
        (190_000, "2 d 4 h"),
    ],
)
def test_a_duration_has_the_figures_that_matter(seconds: float, text: str) -> None:
    assert formatting.duration(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0.0 %"), (0.0004, "< 0.1 %"), (0.5, "50.0 %"), (0.9996, "> 99.9 %"), (1, "100.0 %")],
)
def test_a_share_is_never_rounded_to_nothing_or_to_all(share: float, text: str) -> None:
    assert formatting.percent(share) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T01:00:00.250000+01:00", 0.25),
        ("1970-01-01T00:01:00", 60.0),
        ("yesterday", None),
        ("", None),
        (None, None),
    ],
)
def test_a_moment_is_read_or_is_none(text: str | None, seconds: float | None) -> None:
    assert formatting.moment(text) == seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.07412, "0.0741"), (999.4, "999"), (999.6, "1 000"), (74_123.0, "74 100")],
)
def test_an_amount_has_three_figures_and_no_exponent(value: float, text: str) -> None:
    assert formatting.amount(value) == text.replace(" ", "\N{NO-BREAK SPACE}")
