"""Choose the waiting gangs that one cycle tries on a cluster with more nodes.

Each try costs some cycles on a hypothetical cluster, so a cycle has a budget of them. Gangs that no
number of new nodes can help cost nothing: no offered node is large enough for any of their pods, or
the pool could not get enough GPUs.

Beyond the budget, the gangs that were put off longest come first, then the first gangs of each
namespace, then their second ones. So one namespace cannot keep the gangs of another from asking.
The chosen gangs are tried in scheduling order.

Each later cycle finds the places of gangs with open requests again. So these have a budget as well,
and a gang that would exceed it is put off until others have their nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from drumline_scheduler.autoscaling.node_offers import PoolSizes, nodes_allowed
from drumline_scheduler.model import Gang, NodeOffer, Snapshot
from drumline_scheduler.queueing.search_costs import cost_of
from drumline_scheduler.resources import Resources

MAX_TRIED: Final = 32
"""Number of gangs that are tried. Some of them wait for resources that no new node has."""
MAX_OPEN_UNITS: Final = 96
"""Units of all gangs with open requests. One may request whatever it costs."""
_NODES_A_UNIT: Final = 32
"""New nodes that are added to the hypothetical cluster in the time of one ordinary search."""
_TRY_UNITS: Final = 4
"""Units of a try beside the search: two cycles on a hypothetical cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTries:
    """The gangs that are tried, and those that are put off."""

    gangs: tuple[Gang, ...] = ()
    """In scheduling order."""
    late: tuple[str, ...] = ()
    """Uids of gangs that the next cycle tries, the longest put off first."""


def node_tries(
    waiting: Sequence[Gang],
    *,
    snapshot: Snapshot,
    sizes: PoolSizes,
    budget: int | None,
    before: Sequence[str],
    used: int = 0,
    is_late: bool = False,
) -> NodeTries:
    """Return the gangs to try on more nodes.

    Args:
        waiting: gangs that more nodes may help, in scheduling order.
        snapshot: the cluster with its offers.
        sizes: sizes of the pools, with nodes requested so far.
        budget: units for all tries. None: no limit beside `MAX_TRIED`.
        before: uids of gangs that earlier cycles put off, the longest first.
        used: units of the gangs with open requests.
        is_late: whether the time of the cycle is over. Then only the gang is tried that was put off
            longest, and no gang that never was.
    """
    if not waiting:
        return NodeTries()
    helped = _Helped(snapshot, sizes=sizes)
    possible = [gang for gang in waiting if helped.may_start(gang)]
    # 1. The order in which gangs get a part of the budget.
    turn = {uid: index for index, uid in enumerate(before)}
    seen = Counter[str]()
    rounds: list[tuple[int, int, int]] = []
    for index, gang in enumerate(possible):
        rounds.append((turn.get(gang.uid, len(turn)), seen[gang.namespace], index))
        seen[gang.namespace] += 1
    # 2. At least one gang is tried, whatever it costs, unless others have requests.
    chosen: list[int] = []
    late: list[int] = []
    units = 0
    most = MAX_TRIED
    if is_late:
        most = int(any(gang.uid in turn for gang in possible))
    for _, _, index in sorted(rounds):
        cost = units_of(possible[index], nodes=helped.most_nodes(possible[index]))
        is_free = not units or budget is None or units + cost <= budget
        is_open = not used or budget is None or used + cost <= MAX_OPEN_UNITS
        if len(chosen) < most and is_free and is_open:
            chosen.append(index)
            units, used = units + cost, used + cost
        else:
            late.append(index)
    return NodeTries(
        gangs=tuple(possible[index] for index in sorted(chosen)),
        late=tuple(possible[index].uid for index in late) if budget is not None else (),
    )


def units_of(gang: Gang, *, nodes: int) -> int:
    """Return the units of finding places for a gang on a cluster with some new nodes."""
    return 2 * cost_of(gang) + _TRY_UNITS + nodes // _NODES_A_UNIT


class _Helped:
    """Quick bounds on what more nodes can do.

    Args:
        snapshot: the cluster with its offers.
        sizes: sizes of the pools.
    """

    def __init__(self, snapshot: Snapshot, *, sizes: PoolSizes) -> None:
        self._allowed: dict[str, int] = defaultdict(int)
        """Largest number of new nodes of an offer, by pool."""
        self._gpus: dict[str, int] = defaultdict(int)
        """GPUs that a pool can have for new gangs. More than in truth: no reservation counts."""
        self._offers: dict[str, list[NodeOffer]] = defaultdict(list)
        for offer in snapshot.offers:
            if allowed := nodes_allowed(offer, sizes):
                self._offers[offer.pool].append(offer)
                self._allowed[offer.pool] = max(self._allowed[offer.pool], allowed)
                self._gpus[offer.pool] += allowed * offer.node.allocatable.gpus
        for node in snapshot.nodes:
            if node.pool in self._offers:
                free = node.allocatable.gpus - node.used.gpus + node.terminating.gpus
                self._gpus[node.pool] += max(0, free)
        self._lacking = {
            held.gang.uid: sum(held.gang.request_of(position).gpus for position in held.vacant)
            for held in snapshot.admitted
            if held.vacant
        }
        """GPUs that running gangs lack, by uid."""

    def may_start(self, gang: Gang) -> bool:
        """Return whether new nodes may help a gang. False is certain, True is not."""
        gpus = self._lacking.get(gang.uid, gang.gpus_at(gang.legal_sizes[0]))
        return any(
            gpus <= self._gpus[pool] and any(_holds_a_pod(offer, gang) for offer in offers)
            for pool, offers in self._offers.items()
        )

    def most_nodes(self, gang: Gang) -> int:
        """Return the largest number of new nodes in a try."""
        return min(gang.nodes + gang.extras, max(self._allowed.values(), default=0))


def _holds_a_pod(offer: NodeOffer, gang: Gang) -> bool:
    """Return whether an empty new node can hold any pod of a gang."""
    whole = offer.node.allocatable
    requests = [gang.per_pod, *(role.per_pod for role in gang.roles)]
    return any(_fits(request, whole) for request in requests)


def _fits(request: Resources, whole: Resources) -> bool:
    # The cheap comparison comes first: there may be thousands of gangs.
    return request.gpus <= whole.gpus and request.fits_in(whole)
