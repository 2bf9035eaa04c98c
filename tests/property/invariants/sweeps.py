"""What holds of sweeps after a cycle: nobody starts beyond the limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from drumline_scheduler.decisions import Decisions
from drumline_scheduler.model import Gang, Snapshot


def sweep_violations(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions
) -> list[str]:
    """Sweeps of which more gangs hold slots than the last that got some allows."""
    gangs = {gang.uid: gang for gang in pending if gang.sweep}
    if not gangs:
        return []
    running = [held.gang for held in snapshot.admitted if not held.is_residual]
    given = {each.uid for each in (*decisions.placed, *decisions.preemptions)}
    new = [gang for uid, gang in gangs.items() if uid in given or gang.nominated]
    holds = Counter((gang.namespace, gang.sweep) for gang in (*running, *new))
    return [
        f"{holds[gang.namespace, gang.sweep]} of sweep {gang.sweep} hold slots, and {gang.key}"
        f" starts with at most {gang.sweep_limit - 1} others"
        for gang in new
        if gang.uid in given and not gang.nominated
        if holds[gang.namespace, gang.sweep] > max(_limits(new, gang))
    ]


def _limits(new: Sequence[Gang], gang: Gang) -> list[int]:
    """The limits of what gets slots in the gang's sweep."""
    return [
        each.sweep_limit
        for each in new
        if (each.namespace, each.sweep) == (gang.namespace, gang.sweep)
    ]
