"""Format figures, times and foreign text identically in every renderer."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86_400


def duration(seconds: float) -> str:
    """Return a duration with two significant figures: `240 ms`, `8.31 s`, `3 min 20 s`, `2 d 4 h`.

    Never negative: clocks of different machines may disagree by more than a step takes.
    """
    seconds = max(seconds, 0.0)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, name, part, part_name in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "min"),
        (_MINUTE, "min", 1, "s"),
    ):
        if whole >= unit:
            count, rest = divmod(whole, unit)
            return (
                f"{count} {name} {rest // part} {part_name}" if rest // part else f"{count} {name}"
            )
    return f"{whole} s"


def exact(milliseconds: int) -> str:
    """Format milliseconds as seconds with three digits, so that columns add up exactly."""
    return f"{milliseconds / 1000:.3f} s"


def count(number: float) -> str:
    """Return a count with spaces between thousands, as no comma is read as a decimal point then."""
    return f"{round(number):,}".replace(",", "\N{NO-BREAK SPACE}")


def amount(value: float) -> str:
    """Money or the like, with three figures that matter: `0.0741`, `74 100`, never `7.41e+04`."""
    return f"{value:.3g}" if value < 999.5 else count(float(f"{value:.3g}"))


def many(number: int, noun: str) -> str:
    """`1 step`, `12 steps`."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def gpus(amount: float) -> str:
    """`1 GPU`, `12 GPUs`, `3.43 GPUs` where parts of GPUs are added up."""
    if float(amount).is_integer():
        return many(int(amount), "GPU")
    return f"{amount:.2f} GPUs"


def gpus_of(number: float, partition: str) -> str:
    """Return the GPUs of a job or workload: `16`, `2 x mig-1g.10gb`, `0.43`."""
    figure = str(int(number)) if float(number).is_integer() else f"{number:.2f}"
    return f"{figure} x {partition.rpartition('/')[2]}" if partition else figure


def slice_words(*, pods: int, level: str, required: bool) -> str:
    """`every 2 pods in one clique if possible`.

    Args:
        pods: Pods of each slice.
        level: topology level of a slice.
        required: False adds `if possible`.
    """
    wish = "" if required else " if possible"
    return f"every {pods} pods in one {level}{wish}"


def percent(share: float) -> str:
    """Return a share of one. Never rounded up to all, nor down to nothing."""
    if 0 < share < 0.001:
        return "< 0.1 %"
    if 0.999 < share < 1:
        return "> 99.9 %"
    return f"{share * 100:.1f} %"


def clock(seconds: float) -> str:
    """Return a moment, in UTC: `2026-11-21 07:12:03Z`."""
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def day(seconds: float) -> str:
    """Return the day of a moment, in UTC: `2026-11-21`."""
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d")


def moment(text: str | None) -> float | None:
    """Return an RFC 3339 time as seconds since the epoch. None: absent or not valid."""
    if not text:
        return None
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
