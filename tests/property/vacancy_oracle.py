"""Decide by brute force whether the vacant positions of a running gang can be filled.

The oracle tries every node for every vacant position. It uses no slots, no tree and no index.

Example: racks r0 and r1 have one free slot each. A gang with slices of 2 pods by rack keeps
position 0 in r0 and lost the positions 1, 2 and 3. Position 1 must join position 0 in r0. No rack
has 2 slots for the positions 2 and 3, so the answer is no.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, combinations_with_replacement, product

from drumline_scheduler import Gang, Node, Role, Slice
from tests.unit.scheduler.builders import gang, pod, room

LEVELS = ("zone", "block", "rack")
PLACES = tuple(
    ("z0", block, rack)
    for block, rack in (
        ("b0", "r0"),
        ("b0", "r0"),
        ("b0", "r1"),
        ("b1", "r0"),
        ("b1", "r0"),
        ("b1", "r1"),
    )
)
"""Zone, block and rack by node: 6 nodes in 2 blocks of 2 racks, all in one zone."""
REQUIRED = (None, "block", "rack")
SLICES: Mapping[int, Sequence[tuple[tuple[str, int], ...]]] = {
    2: ((("rack", 2),), (("block", 2),), (("zone", 2),)),
    4: ((("rack", 2),), (("block", 2),), (("zone", 4), ("rack", 2)), (("block", 4), ("rack", 2))),
    6: (
        (("rack", 2),),
        (("block", 2),),
        (("rack", 3),),
        (("block", 3),),
        (("block", 6), ("rack", 2)),
        (("block", 6), ("rack", 3)),
    ),
}
"""Slices by number of pods, as (level, pods), beside no slices at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The topology that a gang requires."""

    pods: int
    """Main pods."""
    slices: tuple[tuple[str, int], ...]
    required: str | None
    launcher_gpus: int = 0
    """GPUs of each launcher, which is a role pod. 0: no launcher."""
    launchers: int = 1

    def __str__(self) -> str:
        slices = [f"{pods}-a-{level}" for level, pods in self.slices]
        parts = [f"{self.pods}-pods", *slices, f"in-{self.required or 'pool'}"]
        launchers = [f"{self.extras}-launchers-of-{self.launcher_gpus}"] if self.extras else []
        return "-".join([*parts, *launchers])

    @property
    def extras(self) -> int:
        """Number of role pods."""
        return self.launchers if self.launcher_gpus else 0

    @property
    def positions(self) -> int:
        """Number of all pods."""
        return self.pods + self.extras

    def gpus_at(self, position: int) -> int:
        """Return the GPUs of the pod at a position."""
        return self.launcher_gpus if position < self.extras else 1

    def gang(self, *, preferred: str | None = None, balanced: str | None = None) -> Gang:
        """Return the gang with this shape; each main pod asks for 1 GPU."""
        launcher = Role(
            name="launcher", pods=self.launchers, per_pod=pod(self.launcher_gpus, cpu=0)
        )
        return gang(
            "g",
            nodes=self.pods,
            per_pod=pod(1, cpu=0),
            required_level=self.required,
            preferred_level=preferred,
            balanced_level=balanced,
            slices=tuple(Slice(level=level, pods=pods) for level, pods in self.slices),
            roles=(launcher,) if self.launcher_gpus else (),
        )


def domain(place: int, level: str | None) -> tuple[str, ...]:
    """Return the path of a node's domain."""
    return () if level is None else PLACES[place][: LEVELS.index(level) + 1]


def shapes() -> Iterator[Shape]:
    """Yield every shape of up to 6 pods."""
    for pods in range(1, 7):
        for slices in ((), *SLICES.get(pods, ())):
            for required in REQUIRED:
                yield Shape(pods=pods, slices=slices, required=required)
                if slices and pods < 6:
                    yield Shape(pods=pods, slices=slices, required=required, launcher_gpus=2)
                if slices and pods == 2:
                    small = Shape(pods=pods, slices=slices, required=required, launcher_gpus=1)
                    yield replace(small, launchers=2)


def assignments(shape: Shape) -> Iterator[tuple[int, ...]]:
    """Yield every lawful assignment with ascending main pods; no node holds many pods."""
    most = 2 if shape.required is None else 3
    for counts in product(range(most + 1), repeat=len(PLACES)):
        if sum(counts) == shape.pods:
            main = tuple(i for i, count in enumerate(counts) for _ in range(count))
            for launchers in combinations_with_replacement(range(len(PLACES)), shape.extras):
                chosen = (*launchers, *main)
                if is_lawful(shape, dict(enumerate(chosen))):
                    yield chosen


def free_rooms() -> Iterator[tuple[int, ...]]:
    """Yield free GPUs by node; two nodes of a rack are interchangeable."""
    pairs, single = ((0, 0), (0, 1), (1, 1)), (0, 1, 2)
    for first, second, third, fourth in product(pairs, single, pairs, single):
        yield (*first, second, *third, fourth)


def subsets(shape: Shape) -> Iterator[tuple[int, ...]]:
    """Yield every set of positions that is not empty."""
    for count in range(1, shape.positions + 1):
        yield from combinations(range(shape.positions), count)


def is_lawful(shape: Shape, places: Mapping[int, int]) -> bool:
    """Return whether pods on these nodes, by position, have the required topology."""
    if len({domain(place, shape.required) for place in places.values()}) > 1:
        return False
    for level, pods in shape.slices:
        homes: dict[int, tuple[str, ...]] = {}
        for position, place in places.items():
            home, rank = domain(place, level), position - shape.extras
            if rank >= 0 and homes.setdefault(rank // pods, home) != home:
                return False
    return True


def can_fill(shape: Shape, *, kept: Mapping[int, int], free: Sequence[int]) -> bool:
    """Return whether all positions that are not kept can have nodes.

    Args:
        shape: topology of the gang.
        kept: nodes by position of the pods that stay; they are lawful.
        free: GPUs by node.
    """
    vacant = [position for position in range(shape.positions) if position not in kept]
    return _fill(shape, dict(kept), list(free), vacant)


def _fill(shape: Shape, places: dict[int, int], free: list[int], vacant: list[int]) -> bool:
    if not vacant:
        return True
    if sum(free) < sum(map(shape.gpus_at, vacant)):
        return False
    position, tried = vacant[0], set[tuple[tuple[str, ...], int]]()
    gpus = shape.gpus_at(position)
    for place, slots in enumerate(free):
        alike = (PLACES[place], slots)
        if slots < gpus or alike in tried:
            continue
        tried.add(alike)
        places[position] = place
        free[place] -= gpus
        if is_lawful(shape, places) and _fill(shape, places, free, vacant[1:]):
            return True
        free[place] += gpus
        del places[position]
    return False


def nodes_with(free: Sequence[int]) -> list[Node]:
    """Return the nodes with these free GPUs and otherwise nothing in use."""
    return [
        Node(name=f"n{i}", pool="h100", domains=place, allocatable=room(slots, pods=110))
        for i, (place, slots) in enumerate(zip(PLACES, free, strict=True))
    ]
