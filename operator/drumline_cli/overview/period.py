"""Periods as people write them: `30d`, `90m`, or a day."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from drumline_cli.errors import BadInput

_LENGTH: Final = re.compile(r"(\d{1,6})([mhd])")
_SECONDS: Final = {"m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Length:
    """A length of time."""

    seconds: float


def begin_of(text: str | None, *, now: float) -> float | None:
    """Return the begin of a period that ends now, in seconds since the epoch. None: no period.

    Raises:
        BadInput: the text is neither a length nor a day.
    """
    read = period_of(text)
    return now - read.seconds if isinstance(read, Length) else read


def period_of(text: str | None) -> Length | float | None:
    """Return a length before now, or a moment in seconds since the epoch. None: everything.

    Raises:
        BadInput: the text is neither.
    """
    if text is None:
        return None
    if length := _LENGTH.fullmatch(text):
        return Length(float(int(length[1]) * _SECONDS[length[2]]))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(
            f"invalid --since {text}: want a duration such as 30d or 12h, or a day"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
