"""The expected start of a waiting job in words, the same in every command and on the page."""

from __future__ import annotations

from drumline.overview.jobs import CANNOT_START, WAITS_FOR_HOLDERS
from drumline_cli.formatting import duration


def start_text(early: float | None, late: float | None, *, now: float, reason: str = "") -> str:
    """Return `in 12 min to 40 min`, or why the start is not known.

    Args:
        early: half of the forecasts are before it; None: not known.
        late: nine in ten of the forecasts are before it; None: not known.
        now: seconds since the epoch, as of the other two.
        reason: why the job waits; empty: not known.
    """
    # These reasons never end by waiting, so a time would be wrong.
    if reason in CANNOT_START:
        return f"not before a change: {reason}"
    if early is None:
        if not reason:
            return "not known"
        why = "no end of the jobs before it is known" if reason in WAITS_FOR_HOLDERS else reason
        return f"not known: {why}"
    # A forecast in the past is worse than none.
    if late is not None and late <= now:
        return f"not known: was expected {duration(now - late)} ago"
    if early <= now and late is None:
        return f"not known: was expected {duration(now - early)} ago"
    # The first time has passed, but the second has not.
    if early <= now and late is not None:
        return f"within {duration(late - now)}"
    first = duration(early - now)
    if late is None:
        return f"in {first} or later"
    last = duration(late - now)
    return f"in {first}" if first == last else f"in {first} to {last}"
