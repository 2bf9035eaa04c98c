"""Every way to seat a gang on a small cluster: the definition, without anything of the engine's.

A seating says how many pods of each kind (its roles in their order, then the main ones) each node
gets. It knows no slots, no tree and no index: requests are added up node by node, and what a gang
requires is read off the node names. Which of several lawful seatings is the best is measured here
too, from the words of docs/architecture-scheduling.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from drumline_scheduler import (
    Gang,
    Node,
    NodeOperator,
    NodeRequirement,
    Resources,
    Slice,
    Snapshot,
    TaintEffect,
    TolerationOperator,
)

Amounts = dict[str, int]
Counts = tuple[int, ...]
Seating = tuple[Counts, ...]
"""By node, in the order in which the nodes were given."""
Path = tuple[str, ...]


def amounts(resources: Resources) -> Amounts:
    return {
        "gpus": resources.gpus,
        "cpu": resources.cpu_millis,
        "memory": resources.memory_bytes,
        "pods": resources.pods,
        "disk": resources.ephemeral_bytes,
        **dict(resources.extended),
    }


def minus(have: Mapping[str, int], gone: Mapping[str, int], *, times: int = 1) -> Amounts:
    return {name: have.get(name, 0) - times * gone.get(name, 0) for name in {*have, *gone}}


def fits(asked: Mapping[str, int], free: Mapping[str, int]) -> bool:
    return all(free.get(name, 0) >= amount for name, amount in asked.items() if amount > 0)


def request_at(gang: Gang, position: int) -> Amounts:
    """What the pod at a position asks for: those of the roles come first."""
    kinds = [role.per_pod for role in gang.roles for _ in range(role.pods)]
    return amounts(kinds[position] if position < len(kinds) else gang.per_pod)


def free_now(snapshot: Snapshot) -> dict[str, Amounts]:
    """By node: what no pod holds and no admitted gang was promised."""
    free = {
        node.name: minus(amounts(node.allocatable), amounts(node.used)) for node in snapshot.nodes
    }
    for held in snapshot.admitted:
        for position, name in enumerate(held.assignment):
            if position in held.reserved and position not in held.lost and name in free:
                free[name] = minus(free[name], request_at(held.gang, position))
    return free


def is_open(gang: Gang, node: Node) -> bool:
    """Whether the node takes new pods of the gang."""
    if node.unschedulable or not node.ready or node.distrusted or node.closed or node.quarantined:
        return False
    if node.name in gang.excluded_nodes:
        return False
    if any(node.labels.get(key) != value for key, value in gang.selector.items()):
        return False
    if gang.affinity and not any(
        all(_holds(each, node.labels) for each in term) for term in gang.affinity
    ):
        return False
    return all(_tolerated(gang, node, i) for i in range(len(node.taints)))


def _tolerated(gang: Gang, node: Node, i: int) -> bool:
    taint = node.taints[i]
    if taint.effect is TaintEffect.PREFER_NO_SCHEDULE:
        return True
    return any(
        toleration.effect in (None, taint.effect)
        and (
            toleration.key in ("", taint.key)
            if toleration.operator is TolerationOperator.EXISTS
            else (toleration.key, toleration.value) == (taint.key, taint.value)
        )
        for toleration in gang.tolerations
    )


def _holds(item: NodeRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(item.key)
    match item.operator:
        case NodeOperator.IN:
            return value in item.values
        case NodeOperator.NOT_IN:
            return value not in item.values
        case NodeOperator.EXISTS:
            return value is not None
        case NodeOperator.DOES_NOT_EXIST:
            return value is None
        case NodeOperator.GREATER_THAN:
            return value is not None and value.isdigit() and int(value) > int(item.values[0])
        case NodeOperator.LESS_THAN:
            return value is not None and value.isdigit() and int(value) < int(item.values[0])


def path_at(node: Node, level: str | None, levels: Sequence[str]) -> Path | None:
    """The node's domain of a level; None where it has no such label. No level: the pool."""
    if level is None:
        return ()
    path = node.domains[: list(levels).index(level) + 1]
    return path if path and path[-1] else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A pool as one gang of some size sees it: the nodes it may use and what is free there."""

    gang: Gang
    size: int
    nodes: tuple[Node, ...]
    free: Mapping[str, Amounts]
    levels: tuple[str, ...]

    def lawful(
        self, *, level: str | None = None, slices: Sequence[Slice] = ()
    ) -> Iterator[Seating]:
        """Every seating inside one domain of a level, with these slices."""
        groups: dict[Path, list[Node]] = defaultdict(list)
        for node in self.nodes:
            path = path_at(node, level, self.levels)
            if path is not None:
                groups[path].append(node)
        for members in groups.values():
            names = {node.name for node in members}
            for seating in self._seatings(names):
                if self.is_sliced(seating, slices):
                    yield seating

    def is_sliced(self, seating: Seating, slices: Sequence[Slice]) -> bool:
        """Whether the main pods can be ranked so that each slice is in one domain.

        They can if each domain holds whole slices, since those of the narrower levels divide
        those of the broader.
        """
        for piece in slices:
            held: Counter[Path | None] = Counter()
            for node, counts in zip(self.nodes, seating, strict=True):
                if counts[-1]:
                    held[path_at(node, piece.level, self.levels)] += counts[-1]
            if None in held or any(pods % piece.pods for pods in held.values()):
                return False
        return True

    def spread(self, seating: Seating, level: str, *, main_only: bool) -> tuple[int, ...]:
        """The pods in each domain of a level that is used, ascending."""
        held: Counter[Path | None] = Counter()
        for node, counts in zip(self.nodes, seating, strict=True):
            held[path_at(node, level, self.levels)] += counts[-1] if main_only else sum(counts)
        return tuple(sorted(pods for pods in held.values() if pods))

    def home(self, seating: Seating, level: str | None) -> Path | None:
        """The one domain of a level that holds all of it, if there is one."""
        homes = {
            path_at(node, level, self.levels)
            for node, counts in zip(self.nodes, seating, strict=True)
            if sum(counts)
        }
        return homes.pop() if len(homes) == 1 else None

    def seating_of(self, assignment: Sequence[str]) -> Seating:
        """The seating that an assignment by position is."""
        kinds = [i for i, role in enumerate(self.gang.roles) for _ in range(role.pods)]
        place = {node.name: i for i, node in enumerate(self.nodes)}
        result = [[0] * (len(self.gang.roles) + 1) for _ in self.nodes]
        for position, name in enumerate(assignment):
            kind = kinds[position] if position < len(kinds) else -1
            result[place[name]][kind] += 1
        return tuple(map(tuple, result))

    def free_gpus(self, path: Path) -> int:
        """What is free in a domain, on nodes that are open to the gang."""
        return sum(
            max(0, self.free[node.name].get("gpus", 0))
            for node in self.nodes
            if node.domains[: len(path)] == path
        )

    def _seatings(self, names: set[str]) -> Iterator[Seating]:
        wanted = (*(role.pods for role in self.gang.roles), self.size)
        kinds = (*(amounts(role.per_pod) for role in self.gang.roles), amounts(self.gang.per_pod))
        options = [
            list(_options(kinds, wanted, self.free[node.name]))
            if node.name in names
            else [(0,) * len(wanted)]
            for node in self.nodes
        ]
        tails = [wanted]
        most = tuple(0 for _ in wanted)
        tails = [most]
        for choice in reversed(options):
            most = tuple(
                above + max(counts[kind] for counts in choice) for kind, above in enumerate(most)
            )
            tails.append(most)
        yield from _fill(options, wanted, tails[::-1], ())


def _options(kinds: Sequence[Amounts], wanted: Counts, free: Mapping[str, int]) -> Iterator[Counts]:
    """The numbers of pods of each kind that one node can hold together."""
    if not kinds:
        yield ()
        return
    for count in range(wanted[0] + 1):
        total = {name: count * amount for name, amount in kinds[0].items()}
        if not fits(total, free):
            break
        for rest in _options(kinds[1:], wanted[1:], minus(free, kinds[0], times=count)):
            yield (count, *rest)


def _fill(
    options: Sequence[Sequence[Counts]], wanted: Counts, tails: Sequence[Counts], chosen: Seating
) -> Iterator[Seating]:
    """All ways to take one option of each node so that they add up to what is wanted."""
    if any(have < want for have, want in zip(tails[0], wanted, strict=True)):
        return
    if not options:
        yield chosen
        return
    for counts in options[0]:
        left = tuple(want - count for want, count in zip(wanted, counts, strict=True))
        if min(left, default=0) >= 0:
            yield from _fill(options[1:], left, tails[1:], (*chosen, counts))


def table(
    snapshot: Snapshot, gang: Gang, *, pool: str, size: int, free: Mapping[str, Amounts]
) -> Table:
    """The pool as the gang sees it now."""
    nodes = tuple(
        sorted(
            (node for node in snapshot.nodes if node.pool == pool and is_open(gang, node)),
            key=lambda node: node.name,
        )
    )
    levels = next(each.levels for each in snapshot.pools if each.name == pool)
    return Table(gang=gang, size=size, nodes=nodes, free=free, levels=levels)


def required(gang: Gang) -> tuple[Slice, ...]:
    return tuple(piece for piece in gang.slices if piece.required)


def unlawful_places(item: Table, assignment: Sequence[str]) -> list[str]:
    """What an assignment by rank breaks of what its gang requires."""
    gang = item.gang
    open_to = {node.name: node for node in item.nodes}
    closed = sorted({name for name in assignment if name not in open_to})
    if closed:
        return [f"{gang.key} is placed on {closed}, closed to it"]
    paths = {path_at(open_to[name], gang.required_level, item.levels) for name in assignment}
    result: list[str] = []
    if len(paths) != 1 or None in paths:
        result.append(f"{gang.key} is spread over {paths}")
    mains = assignment[gang.extras :]
    for piece in required(gang):
        for start in range(0, len(mains), piece.pods):
            ranks = mains[start : start + piece.pods]
            homes = {path_at(open_to[name], piece.level, item.levels) for name in ranks}
            if len(homes) != 1 or None in homes:
                result.append(f"{gang.key}: the slice at rank {start} is spread over {homes}")
    return result


def can_sit(item: Table) -> bool:
    """Whether any seating keeps all that the gang requires."""
    gang = item.gang
    asked = [gang.required_level, *(piece.level for piece in required(gang))]
    if any(level is not None and level not in item.levels for level in asked):
        return False
    seatings = item.lawful(level=gang.required_level, slices=required(gang))
    return next(seatings, None) is not None


Measure = Callable[[Seating], tuple[int, ...]]
