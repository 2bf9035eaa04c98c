"""Split an elastic job over two pools: its smallest size on stable nodes, its surplus on spot.

The scheduler treats these as two gangs, because a gang is in one pool. The base gang refers to its
*surplus gang* (`Gang.surplus`), whose uid is derived from the base gang's. So quota, prices,
topology and preemption count each gang in its own pool. Only these rules connect the pair:

* The surplus gang never waits in line. It takes places when elastic gangs grow, beside a base gang
  that is whole. No gang is preempted and no nodes are requested for it.
* It may shrink to nothing. The base gang then continues alone.
* It leaves with the base gang, and neither is moved.

Example: a job wants 8 pods and at least 2, with sizes 2, 4 and 8. The base gang has 2 pods, and its
surplus gang has the sizes 2 and 6. With 4 free spot nodes the job runs with 4 pods. If one of these
is reclaimed, the job runs with 2 pods again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from drumline_scheduler.model.gangs import Admitted, Gang

_SUFFIX: Final = "/surplus"


def can_be_split(gang: Gang) -> bool:
    """Return whether the gang has surplus, and may have it in a second pool."""
    return len(gang.legal_sizes) > 1 and gang.pool is None and gang.required_level is None


def with_surplus(gang: Gang, *, smallest: int) -> Gang:
    """Return an elastic gang at its smallest size, with a surplus gang if any size is larger.

    Args:
        gang: an elastic gang without roles; its sizes count both gangs together.
        smallest: number of its main pods that are not surplus.
    """
    sizes = tuple(size - smallest for size in gang.legal_sizes if size > smallest)
    base = replace(gang, nodes=smallest, sizes=())
    if not sizes:
        return base
    # The surplus gang has no line, group or predecessors of its own: it follows the base gang.
    surplus = replace(
        base,
        uid=surplus_uid(gang.uid),
        nodes=sizes[-1],
        sizes=sizes,
        nominated=(),
        nominated_pool="",
        group="",
        group_gangs=1,
        sweep="",
        after=(),
        surplus_of=gang.uid,
    )
    return replace(base, surplus=surplus)


def surplus_uid(uid: str) -> str:
    """Return the uid of the surplus gang of the gang with this uid."""
    return uid + _SUFFIX


def is_surplus(uid: str) -> bool:
    """Return whether this is the uid of a surplus gang."""
    return uid.endswith(_SUFFIX)


def job_uid(uid: str) -> str:
    """Return the uid of the job of a gang or a surplus gang with this uid."""
    return uid.removesuffix(_SUFFIX)


def at_size(gang: Gang, size: int) -> Gang:
    """Return the gang at a size, without its surplus gang."""
    return replace(gang, nodes=size, surplus=None) if gang.surplus is not None else gang


def parts_of(
    whole: Admitted, *, gang: Gang, smallest: int, surplus_pool: str
) -> tuple[Admitted, ...]:
    """Return all places of a job as the scheduler sees them: one gang, or a gang and its surplus.

    Args:
        whole: the job with all its places, the surplus last.
        gang: the gang that is not surplus.
        smallest: number of places of that gang.
        surplus_pool: pool of the other places; '' if there are none.
    """
    if not surplus_pool or gang.surplus is None:
        return (replace(whole, gang=gang),)
    base = _part(whole, gang=gang, positions=range(smallest))
    beyond = range(smallest, len(whole.assignment))
    surplus = _part(whole, gang=gang.surplus, positions=beyond)
    # A surplus gang that gives up all its positions leaves as a whole.
    gives_up = len(surplus.giving_up) == len(surplus.assignment)
    surplus = replace(
        surplus,
        pool=surplus_pool,
        gpu_seconds_at_risk=0.0,  # the others keep its work
        leaving=whole.leaving or gives_up,
        giving_up=frozenset() if gives_up else surplus.giving_up,
        nominated={},
        nominated_pool="",
    )
    return base, surplus


def _part(whole: Admitted, *, gang: Gang, positions: range) -> Admitted:
    """Return some positions of a job as a separate gang."""

    def within(known: frozenset[int]) -> frozenset[int]:
        return frozenset(position - positions.start for position in known if position in positions)

    return replace(
        whole,
        gang=gang,
        assignment=whole.assignment[positions.start : positions.stop],
        reserved=within(whole.reserved),
        lost=within(whole.lost),
        giving_up=within(whole.giving_up),
        displaced=within(whole.displaced),
    )
