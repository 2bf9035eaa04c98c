"""Choose the waiting gangs that a cycle tries, so that one namespace cannot fill a cycle.

Equivalent gangs are tried once, so the work of a cycle grows with the kinds of gangs that wait. A
tenant may write any number of kinds. So each namespace has a budget in each cycle, in units of one
search for an ordinary gang (`cost_of`). A namespace within its budget is not affected, as long as
all namespaces together stay within `NAMESPACES` budgets. Beyond that, they take turns.

Beyond it, half of the budget goes to the kinds that come first in scheduling order. The rest goes
to the kinds that were deferred longest. So each kind is tried within a number of cycles that
depends on its own namespace, and on the number of namespaces if these take turns. Costly kinds,
such as jobs with many roles, also share one budget of all namespaces, so that many namespaces
together cannot fill a cycle either. Gangs that hold nodes, or for which nodes were requested, are
always tried. Under the strict rule a gang must not pass one that waits for others to end. So only
kinds are deferred that held no gang back when they were last tried, such as one that no node can
hold. Others cost little there: once a gang waits for capacity, no later one is searched for.

Example: budget 4, and ten kinds of cost 1, a to j. The first cycle tries a, b, c and d; the next
ones a, b, e, f and a, b, g, h and a, b, i, j.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from drumline_scheduler.decisions import (
    INDEPENDENT_REASONS,
    Blocked,
    BlockReason,
    Remedy,
    RemedyKind,
)
from drumline_scheduler.model import Gang, OrderKey, order_key
from drumline_scheduler.queueing.groups import group_cost
from drumline_scheduler.queueing.pending_gangs import GroupKey, PendingGangs
from drumline_scheduler.rejections import Rejection

TRY_BUDGET: Final = 24
"""Units that one namespace may use in a cycle of the operator."""
NAMESPACES: Final = 9
"""Namespaces whose whole budgets fit into one cycle. More of them take turns."""
COSTLY: Final = 4
"""Cost above which a kind counts for the budget of all namespaces together."""
_PREEMPTION_UNITS: Final = 2
"""For a gang of a queue that may preempt: its victims are searched."""
FEW_VICTIMS: Final = 8
"""Running gangs up to which a search for victims costs nothing beside the search for places."""
_FIRST_OF_EACH: Final = 3
"""Kinds of namespaces without any try after which one of the other namespaces stands."""
_GROUP_SEARCHES: Final = 4
"""Searches for victims that count for a group. Others cost little: most victims are fixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
    """The gangs that a cycle does not try."""

    classes: frozenset[int] = frozenset()
    """Equivalence classes."""
    groups: frozenset[GroupKey] = frozenset()
    """Namespaces and names of groups."""
    uids: tuple[str, ...] = ()
    """The first gang of each class and group, the longest deferred first."""
    before: Sequence[str] = ()
    """Uids of gangs that earlier cycles did not try, the longest left out first."""

    @staticmethod
    def rejection(namespace: str) -> Rejection:
        """Return the answer to a deferred gang."""
        return Rejection(
            reason=BlockReason.NOT_TRIED,
            message=f"not tried in this cycle: more kinds of jobs wait, in namespace {namespace} or"
            " in all of them, than one cycle tries, so they take turns",
            remedy=Remedy(kind=RemedyKind.WAIT),
        )


NONE_DEFERRED: Final = Deferral()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A class or a group of one namespace."""

    key: OrderKey
    cost: int
    number: int = -1
    """Number of the class. -1 for a group."""
    group: GroupKey | None = None

    @property
    def uid(self) -> str:
        return self.key[-1]


def deferred_gangs(
    pending: PendingGangs,
    *,
    budget: int,
    before: Sequence[str],
    tries: Collection[str],
    may_start: Callable[[Gang], bool],
    may_preempt: Callable[[Gang], bool],
    now: float,
    begun: Collection[GroupKey] = (),
    passed: Collection[str] | None = None,
    beside: int = 0,
) -> Deferral:
    """Return the gangs that a cycle does not try. O(classes + individual gangs).

    Args:
        pending: all waiting gangs.
        budget: units for each namespace.
        before: uids of gangs that earlier cycles deferred, the longest deferred first.
        tries: uids of gangs that are always tried.
        may_start: whether a gang's queue admits it; otherwise it costs nothing.
        may_preempt: whether victims are searched for a gang.
        now: time of the cycle.
        begun: groups with gangs that run. Their waiting gangs start alone.
        passed: uids of the only gangs that may be deferred. None: any gang.
        beside: units of each try for what the policy adds to it. They count only in the budget of
            all namespaces together.
    """
    # 1. Cost of all kinds by namespace. Most namespaces stay within their budget.
    kinds: dict[str, list[_Kind]] = defaultdict(list)
    for kind, gang in _kinds(pending, now=now, begun=begun):
        if may_start(gang) and (passed is None or kind.uid in passed):
            more = _PREEMPTION_UNITS * (_GROUP_SEARCHES if kind.group else 1)
            more = more if may_preempt(gang) else 0
            kinds[gang.namespace].append(replace(kind, cost=kind.cost + more) if more else kind)
    costly = sum(kind.cost for line in kinds.values() for kind in line if kind.cost > COSTLY)
    total = sum(_units(line) + beside * len(line) for line in kinds.values())
    is_crowded = any(_units(line) > budget for line in kinds.values())
    if costly <= budget and total <= NAMESPACES * budget and not is_crowded:
        return NONE_DEFERRED
    # 2. Select the kinds to defer in each crowded namespace, then among the costly kinds of all.
    gangs = (pending.gang(uid) for uid in tries if uid in pending)
    always = _always_tried(kinds, tries=gangs, pending=pending)
    turn = {uid: index for index, uid in enumerate(before)}
    deferred: list[_Kind] = []
    shared: list[tuple[int, _Kind]] = []
    for line in kinds.values():
        free = [kind for kind in line if kind.uid not in always]
        late = _deferred(free, budget=budget, turn=turn) if _units(line) > budget else []
        deferred += late
        out = {kind.uid for kind in late}
        shared += enumerate(kind for kind in free if kind.cost > COSTLY and kind.uid not in out)
    deferred += _beyond(shared, budget=budget, turn=turn)
    # 3. Select among the kinds of all namespaces, if these are many.
    out = {kind.uid for kind in deferred}
    tried = {
        namespace: [kind for kind in line if kind.uid not in out]
        for namespace, line in kinds.items()
    }
    late = _late_of_all(tried, budget=NAMESPACES * budget, turn=turn, always=always, beside=beside)
    deferred += late
    # 4. The longest deferred first: the next cycle uses this order. Namespaces of which a kind is
    # tried mostly stand behind all others, so these come next.
    out.update(kind.uid for kind in late)
    served = {
        kind.uid
        for line in kinds.values()
        if any(each.uid not in out for each in line)
        for kind in line
    }
    deferred.sort(key=_by_turn(turn))
    deferred = _interleaved(
        [kind for kind in deferred if kind.uid not in served],
        [kind for kind in deferred if kind.uid in served],
    )
    return Deferral(
        classes=frozenset(kind.number for kind in deferred if kind.group is None),
        groups=frozenset(kind.group for kind in deferred if kind.group is not None),
        uids=tuple(kind.uid for kind in deferred),
    )


def _always_tried(
    kinds: Mapping[str, Sequence[_Kind]], *, tries: Iterable[Gang], pending: PendingGangs
) -> set[str]:
    """Return the uids of the kinds of these gangs."""
    gangs = list(tries)
    numbers = {pending.class_of(gang) for gang in gangs}
    groups = {(gang.namespace, gang.group) for gang in gangs if gang.group}
    return {
        kind.uid
        for line in kinds.values()
        for kind in line
        if (kind.number in numbers if kind.group is None else kind.group in groups)
    }


def passed_gangs(
    blocked: Iterable[Blocked], *, pending: PendingGangs, before: Collection[str]
) -> frozenset[str]:
    """Return the uids of the waiting gangs that held no gang back in this cycle.

    A gang of a group held none back if no member waits for capacity or quota. A deferred gang
    keeps its standing.

    Args:
        blocked: the answers of the cycle.
        pending: all waiting gangs.
        before: what earlier cycles returned.
    """
    passed, holding = set[str](), set[GroupKey]()
    for answer in blocked:
        if answer.uid not in pending:
            continue
        gang = pending.gang(answer.uid)
        is_deferred = answer.reason is BlockReason.NOT_TRIED and answer.uid in before
        for_others = gang.group and answer.reason is BlockReason.WAITING_FOR_GROUP
        if answer.reason in INDEPENDENT_REASONS or is_deferred or for_others:
            passed.add(answer.uid)
        elif gang.group:
            holding.add((gang.namespace, gang.group))
    if holding:
        gangs = map(pending.gang, passed)
        passed -= {each.uid for each in gangs if (each.namespace, each.group) in holding}
    return frozenset(passed)


def _kinds(
    pending: PendingGangs, *, now: float, begun: Collection[GroupKey]
) -> Iterable[tuple[_Kind, Gang]]:
    """Yield the classes and groups of gangs that are not nominated, with an example of each."""
    in_chains: set[int] = set()
    for number, chain in pending.chains_by_class:
        in_chains.add(number)
        yield (
            _Kind(key=order_key(chain[0]), cost=pending.cost_of(chain[0]), number=number),
            chain[0],
        )
    for gang in pending.individual:
        if gang.nominated or gang.retry_at > now:
            continue
        if gang.group and (gang.namespace, gang.group) not in begun:
            continue
        number = pending.class_of(gang)
        if number not in in_chains:
            in_chains.add(number)
            yield _Kind(key=order_key(gang), cost=pending.cost_of(gang), number=number), gang
    # A group is tried as a whole, in several orders.
    for key, members in pending.groups:
        gangs = [gang for gang in members if not (gang.nominated or gang.retry_at > now)]
        if not gangs or key in begun:
            continue
        first, cost = min(gangs, key=order_key), pending.group_costs.get(key)
        if cost is None or len(gangs) < len(members):
            cost = group_cost(gangs, costs=pending.costs_of(gangs))
            if len(gangs) == len(members):
                pending.group_costs[key] = cost
        yield _Kind(key=order_key(first), cost=cost, group=key), first


def _units(line: Iterable[_Kind]) -> int:
    return sum(kind.cost for kind in line)


def _beyond(
    kinds: Iterable[tuple[int, _Kind]], *, budget: int, turn: Mapping[str, int]
) -> list[_Kind]:
    """Return the costly kinds for which the budget of all namespaces does not suffice.

    Args:
        kinds: the kinds that their namespaces can afford, each with its number there.
        budget: units for all of them. One kind is tried whatever its cost.
        turn: position in the order of the kinds that were deferred longest.
    """
    # The first kinds of all namespaces come before second ones.
    line = sorted(kinds, key=lambda each: (turn.get(each[1].uid, len(turn)), each[0], each[1].key))
    used, late = 0, list[_Kind]()
    for _, kind in line:
        if used and used + kind.cost > budget:
            late.append(kind)
        else:
            used += kind.cost
    return late


def _late_of_all(
    lines: Mapping[str, Sequence[_Kind]],
    *,
    budget: int,
    turn: Mapping[str, int],
    always: Collection[str],
    beside: int,
) -> list[_Kind]:
    """Return the kinds for which the budget of all namespaces does not suffice.

    A quarter of it goes to the namespaces with the fewest units, so that a namespace with few jobs
    seldom waits for crowded ones. Up to half of it goes to the kinds that come first in scheduling
    order. The rest goes to one kind of each namespace, then to a second one of each, and so on: in
    each the longest deferred first. A kind that no cycle has deferred stands one round later.

    Args:
        lines: the kinds that are left, by namespace.
        budget: units for all of them.
        turn: position in the order of the kinds that were deferred longest.
        always: uids of the kinds that are always tried.
        beside: units of each try beside the cost of its kind.
    """
    lines = {
        namespace: [replace(kind, cost=kind.cost + beside) for kind in line]
        for namespace, line in lines.items()
    }
    used = sum(map(_units, lines.values()))
    if used <= budget:
        return []
    small, used = _smallest(lines.values(), budget=budget // 4, turn=turn)
    namespace_of = {kind.uid: namespace for namespace, line in lines.items() for kind in line}
    kinds = sorted((kind for line in lines.values() for kind in line), key=lambda kind: kind.key)
    kinds = [each for each in kinds if each.uid not in always and each.uid not in small]
    first, used = _fitting(kinds, used=used, budget=budget // 2)
    rest = sorted(kinds[first:], key=_by_turn(turn))
    before: Counter[str] = Counter()
    rounds: dict[str, int] = {}
    for kind in rest:
        namespace = namespace_of[kind.uid]
        rounds[kind.uid] = before[namespace] + (kind.uid not in turn)
        before[namespace] += 1
    rest.sort(key=lambda kind: rounds[kind.uid])
    tried, _ = _fitting(rest, used=used, budget=budget, least=1)
    return rest[tried:]


def _smallest(
    lines: Iterable[Sequence[_Kind]], *, budget: int, turn: Mapping[str, int]
) -> tuple[set[str], int]:
    """Return the uids of the kinds of the smallest namespaces that fit, and their units.

    Among namespaces with equal units, those with deferred kinds come first.
    """
    used, uids = 0, set[str]()
    ranked = [
        (
            _units(line),
            turn.keys().isdisjoint(kind.uid for kind in line),
            min(kind.key for kind in line),
            line,
        )
        for line in lines
        if line
    ]
    for units, _, _, line in sorted(ranked, key=lambda each: each[:3]):
        if used + units > budget:
            break
        used += units
        uids.update(kind.uid for kind in line)
    return uids, used


def _interleaved(first: Sequence[_Kind], second: Sequence[_Kind]) -> list[_Kind]:
    """Return both sequences in their order, of the second one kind after some of the first.

    So no kind stays behind others that come anew in each cycle.
    """
    ranked = [(at, 0, kind) for at, kind in enumerate(first)]
    ranked += [((at + 1) * _FIRST_OF_EACH - 1, 1, kind) for at, kind in enumerate(second)]
    return [kind for _, _, kind in sorted(ranked, key=lambda each: each[:2])]


def _by_turn(turn: Mapping[str, int]) -> Callable[[_Kind], tuple[int, OrderKey]]:
    """Return the key of an order in which the longest deferred kinds come first."""
    return lambda kind: (turn.get(kind.uid, len(turn)), kind.key)


def _fitting(kinds: Sequence[_Kind], *, used: int, budget: int, least: int = 0) -> tuple[int, int]:
    """Return the number of first kinds that fit into a budget, and its used units.

    Args:
        kinds: kinds in order.
        used: units that are used already.
        budget: all units.
        least: number of kinds that are taken whatever they cost.
    """
    count = 0
    while count < len(kinds) and (count < least or used + kinds[count].cost <= budget):
        used += kinds[count].cost
        count += 1
    return count, used


def _deferred(line: list[_Kind], *, budget: int, turn: Mapping[str, int]) -> list[_Kind]:
    """Return the kinds of one namespace for which its budget does not suffice."""
    line.sort(key=lambda kind: kind.key)
    first, used = _fitting(line, used=0, budget=budget // 2)
    # The second half of the budget goes to the kinds that were deferred longest. At least one of
    # them is tried, whatever its cost, so that every kind has its turn.
    rest = sorted(line[first:], key=_by_turn(turn))
    tried, _ = _fitting(rest, used=used, budget=budget, least=1)
    return rest[tried:]
