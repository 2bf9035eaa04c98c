"""Choose the waiting gangs that one cycle tries on a cluster with more nodes.

Each try costs some cycles on a hypothetical cluster, so a cycle has a budget of them. Gangs that no
number of new nodes can help cost nothing (`useful_offers`).

Beyond the budget, the gangs that were put off longest come first, then the first gangs of each
namespace, then their second ones. So one namespace cannot keep the gangs of another from asking.
The chosen gangs are tried in scheduling order.

Each later cycle finds the places of gangs with open requests again. So these have a budget as well,
and a gang that would exceed it is put off until others have their nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from drumline_scheduler.autoscaling.useful_offers import UsefulOffers
from drumline_scheduler.model import Gang
from drumline_scheduler.queueing.search_costs import cost_of

MAX_TRIED: Final = 32
"""Number of gangs that are tried. Some of them wait for resources that no new node has."""
MAX_CHECKED: Final = 2 * MAX_TRIED
"""Number of gangs that are checked for an offer that may help them."""
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
    useful: UsefulOffers,
    budget: int | None,
    before: Sequence[str],
    used: int = 0,
    is_late: bool = False,
) -> NodeTries:
    """Return the gangs to try on more nodes.

    Args:
        waiting: gangs that more nodes may help, in scheduling order.
        useful: the offers that may help each gang.
        budget: units for all tries. None: no limit beside `MAX_TRIED`.
        before: uids of gangs that earlier cycles put off, the longest first.
        used: units of the gangs with open requests.
        is_late: whether the time of the cycle is over. Then only the gang is tried that was put off
            longest, and no gang that never was.
    """
    if not waiting:
        return NodeTries()
    possible = [gang for gang in waiting if useful.may_help(gang)]
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
    checks = len(rounds) if budget is None else MAX_CHECKED
    for _, _, index in sorted(rounds):
        cost = units_of(possible[index], nodes=useful.most_nodes(possible[index]))
        is_free = not units or budget is None or units + cost <= budget
        is_open = not used or budget is None or used + cost <= MAX_OPEN_UNITS
        if checks <= 0 or len(chosen) >= most or not (is_free and is_open):
            late.append(index)
            continue
        checks -= 1
        if useful.help_any(possible[index]):
            chosen.append(index)
            units, used = units + cost, used + cost
    return NodeTries(
        gangs=tuple(possible[index] for index in sorted(chosen)),
        late=tuple(possible[index].uid for index in late) if budget is not None else (),
    )


def units_of(gang: Gang, *, nodes: int) -> int:
    """Return the units of finding places for a gang on a cluster with some new nodes."""
    return 2 * cost_of(gang) + _TRY_UNITS + nodes // _NODES_A_UNIT
