"""Retention: which of the checkpoints of a run are removed."""

from __future__ import annotations

from collections.abc import Sequence


def outdated(
    steps: Sequence[int], *, keep: int, verified: Sequence[int], spared: int | None = None
) -> list[int]:
    """Return the steps to remove: those older than the `keep` newest verified ones.

    With fewer verified steps none is removed, so the last verified one always stays.

    Args:
        steps: all steps that are stored.
        keep: the number of verified steps that stay.
        verified: the steps whose digests were checked.
        spared: stays whatever its age.
    """
    newest = sorted(verified, reverse=True)[:keep]
    if len(newest) < keep:
        return []
    return [step for step in steps if step < newest[-1] and step != spared]
