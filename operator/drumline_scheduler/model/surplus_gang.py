"""A job over two pools: its smallest size on nodes that stay, what it has above that on spot nodes.

To the scheduler these are two gangs, as a gang is in one pool. The *surplus gang* is known to the
other one (`Gang.surplus`), and its uid follows from that one's. So quota, prices, topology and
preemption count each where it is, and nothing else has to know of the pair but

* the surplus gang never waits in line: it takes places when elastic gangs grow, beside a gang that
  is whole, so it is preempted for by nobody and no nodes are asked for it;
* it may shrink to nothing: the other gang goes on alone;
* it leaves with the other one, and neither is moved.

Example: 8 pods wanted, 2 at least, of 1 node each, sizes 2, 4 and 8. The gang has 2 pods; its
surplus gang has the sizes 2 and 6. With 4 spot nodes free the job runs with 4 pods. One of them is
reclaimed: 2 again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from drumline_scheduler.model.gangs import Admitted, Gang

_SUFFIX: Final = "/surplus"


def can_be_split(gang: Gang) -> bool:
    """Whether it has surplus, and may have it in a second pool."""
    return len(gang.legal_sizes) > 1 and gang.pool is None and gang.required_level is None


def with_surplus(gang: Gang, *, smallest: int) -> Gang:
    """An elastic gang as one of its smallest size and, if any size is above that, a surplus gang.

    Args:
        gang: elastic, without roles; its sizes are of both together.
        smallest: of its main pods, how many are not surplus.
    """
    sizes = tuple(size - smallest for size in gang.legal_sizes if size > smallest)
    base = replace(gang, nodes=smallest, sizes=())
    if not sizes:
        return base
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
    """The uid of the surplus gang beside the gang with this uid."""
    return uid + _SUFFIX


def is_surplus(uid: str) -> bool:
    """Whether this is the uid of a surplus gang."""
    return uid.endswith(_SUFFIX)


def job_uid(uid: str) -> str:
    """The uid of the job that a gang with this uid is of, or is the surplus of."""
    return uid.removesuffix(_SUFFIX)


def at_size(gang: Gang, size: int) -> Gang:
    """The gang as it would be without surplus of its own: of any size."""
    return replace(gang, nodes=size, surplus=None) if gang.surplus is not None else gang


def parts_of(
    whole: Admitted, *, gang: Gang, smallest: int, surplus_pool: str
) -> tuple[Admitted, ...]:
    """All places of a job as the scheduler sees them: one gang, and its surplus as another.

    Args:
        whole: the job with all its places, those of the surplus last.
        gang: the gang that is not surplus.
        smallest: how many of the places are that gang's.
        surplus_pool: the pool of the others; '': there are none.
    """
    if not surplus_pool or gang.surplus is None:
        return (replace(whole, gang=gang),)
    base = _part(whole, gang=gang, positions=range(smallest))
    beyond = range(smallest, len(whole.assignment))
    surplus = _part(whole, gang=gang.surplus, positions=beyond)
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
    """These positions of a job, as a gang of its own."""

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
