"""The arguments of one scheduling cycle as a value."""

from __future__ import annotations

from dataclasses import dataclass

from drumline_scheduler.decisions import GangFault
from drumline_scheduler.model import Gang, Policy, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleInput:
    """Everything that the decisions of a cycle depend on."""

    snapshot: Snapshot
    """The cluster with its running gangs. Lost positions (`Admitted.lost`) are repaired."""
    pending: tuple[Gang, ...]
    """The waiting gangs. None of them runs."""
    policy: Policy
    now: float
    """Seconds on the clock of `Gang.retry_at` and `Admitted.admitted_at`."""
    set_aside: tuple[GangFault, ...] = ()
    """Faults of earlier cycles. These gangs are not tried again in this cycle."""
    try_budget: int | None = None
    """Units that the waiting gangs of one namespace may use (`queueing.deferral`). None: no limit.
    """
    deferred: tuple[str, ...] = ()
    """Uids of gangs that earlier cycles deferred, the longest deferred first."""
    put_off: tuple[str, ...] = ()
    """Uids of gangs for which the time of earlier cycles did not suffice, the longest first."""
    passed: frozenset[str] = frozenset()
    """Uids of gangs that held no other gang back when they were last tried, under `Strict`."""
    known: frozenset[str] = frozenset()
    """Uids of gangs that were tried in an earlier cycle, under `Strict`."""
    explain: bool = True
    """False: blockers and remedies of rejections may be missing. Everything else is the same."""
    late_from: tuple[str, ...] = ()
    """The places at which the time of a captured cycle was over (`Decisions.late_at`). It is over
    there in this one, too."""
    only_starts: bool = False
    """True: waiting gangs start, and broken ones are repaired. No gang is evicted for a waiting one
    or grows, and rejections have no reasons."""
