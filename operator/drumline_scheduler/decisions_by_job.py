"""Group the decisions of a cycle by job: its gang and its surplus together.

The scheduler treats the surplus of a job as a separate gang (`model.surplus_gang`). The controller
has one list of places for each job, with the surplus last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from drumline_scheduler.decisions import Decisions, Placed, Resized, Victim
from drumline_scheduler.model import is_surplus, job_uid


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlacement:
    """The decisions about the gang of one job and about its surplus."""

    uid: str
    placed: Placed | None = None
    resized: Resized | None = None
    surplus_placed: Placed | None = None
    surplus_resized: Resized | None = None

    @property
    def start(self) -> Placed | None:
        """Its placement, if it had no places before."""
        return self.placed if self.placed is not None and not self.placed.replaced else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Members that continue, and new members."""

    kept: Sequence[int]
    added: Sequence[str]
    surplus_pool: str | None = None
    """The pool of the added nodes if they are surplus."""


def placements(decisions: Decisions) -> Iterable[JobPlacement]:
    """Return the decisions about starts and sizes, by job."""
    by_job: dict[str, JobPlacement] = {}
    for placed in decisions.placed:
        given = by_job.get(job_uid(placed.uid)) or JobPlacement(uid=job_uid(placed.uid))
        by_job[given.uid] = (
            replace(given, surplus_placed=placed)
            if is_surplus(placed.uid)
            else replace(given, placed=placed)
        )
    for resized in decisions.resized:
        given = by_job.get(job_uid(resized.uid)) or JobPlacement(uid=job_uid(resized.uid))
        by_job[given.uid] = (
            replace(given, surplus_resized=resized)
            if is_surplus(resized.uid)
            else replace(given, resized=resized)
        )
    return by_job.values()


def resize(given: JobPlacement, *, smallest: int) -> Resize | None:
    """Return the change of a job's size; None if there is none.

    Surplus is not added while the base gang has no places.

    Args:
        given: the decisions about the job.
        smallest: number of its places that are not surplus.
    """
    resized, surplus = given.surplus_resized, given.surplus_placed
    if given.resized is not None:
        return Resize(kept=given.resized.kept, added=given.resized.added)
    if resized is not None:
        kept = [*range(smallest), *(smallest + place for place in resized.kept)]
        return Resize(kept=kept, added=resized.added, surplus_pool=resized.pool)
    if surplus is not None and not surplus.replaced and smallest:
        return Resize(kept=range(smallest), added=surplus.assignment, surplus_pool=surplus.pool)
    return None


def kept_places(victim: Victim, *, smallest: int) -> tuple[int, ...] | None:
    """Return the places that the job of a victim keeps; None if the job leaves.

    Args:
        victim: the job's gang or its surplus.
        smallest: number of its places that are not surplus.
    """
    if is_surplus(victim.uid):
        return (*range(smallest), *(smallest + place for place in victim.kept))
    return tuple(victim.kept) or None
