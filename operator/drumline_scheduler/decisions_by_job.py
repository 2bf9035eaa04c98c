"""What a cycle gives to each job, or takes from it: its gang and its surplus together.

To the scheduler the surplus of a job is a gang of its own (`model.surplus_gang`); whoever carries
its decisions out has one list of places, those of the surplus last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from drumline_scheduler.decisions import Decisions, Placed, Resized, Victim
from drumline_scheduler.model import is_surplus, job_uid


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlacement:
    """The decisions about one job: about its gang, and about its surplus."""

    uid: str
    placed: Placed | None = None
    resized: Resized | None = None
    surplus_placed: Placed | None = None
    surplus_resized: Resized | None = None

    @property
    def start(self) -> Placed | None:
        """Its places, if it had none."""
        return self.placed if self.placed is not None and not self.placed.replaced else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Members that go on, and new ones."""

    kept: Sequence[int]
    added: Sequence[str]
    surplus_pool: str | None = None
    """The pool of the added nodes, where they are surplus."""


def placements(decisions: Decisions) -> Iterable[JobPlacement]:
    """The decisions by job."""
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
    """The change of its size; None: there is none.

    Surplus whose gang has no places, as these are not to be had yet, is none either.

    Args:
        given: the decisions about the job.
        smallest: how many of its places are no surplus.
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
    """Which of its places the job of a victim keeps; None: none, it leaves.

    Args:
        victim: its gang or its surplus.
        smallest: how many of its places are no surplus.
    """
    if is_surplus(victim.uid):
        return (*range(smallest), *(smallest + place for place in victim.kept))
    return tuple(victim.kept) or None
