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

from drumline.scheduling.model.gangs import Gang

_SUFFIX: Final = "/surplus"


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
