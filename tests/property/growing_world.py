"""Gangs that wait for nodes, an autoscaler that brings some of them, and everything that races.

The decisions and demands are the operator's own; the autoscaler packs placeholders into what is
free and adds nodes for the rest, as far as the cloud has any, in any order and any part. Time is a
number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

from drumline_scheduler import Admitted, Gang, Node, NodeOffer, Queue, Resources, Snapshot
from drumline_scheduler.autoscaling.node_demands import (
    DemandEnd,
    NodeDemand,
    NodeDemands,
    demands_after,
)
from drumline_scheduler.resources import NOTHING
from tests.unit.scheduler.builders import admitted, cluster, gang, node, run

GPUS = 8
TIMEOUT = 600.0
LOOK_SECONDS = 30.0
Place = tuple[str, str]
"""A pool and a zone of it."""


@dataclass(kw_only=True)
class GrowingWorld:
    """One cluster over time."""

    random: Random
    cloud: dict[Place, int]
    """How many nodes there are to be had."""
    limits: dict[str, int]
    now: float = 0.0
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    waiting: list[Gang] = field(default_factory=list[Gang])
    running: dict[str, Admitted] = field(default_factory=dict[str, Admitted])
    demands: NodeDemands = field(default_factory=NodeDemands)
    placeholders: dict[NodeDemand, tuple[Resources, ...]] = field(
        default_factory=dict[NodeDemand, tuple[Resources, ...]]
    )
    """What the API server has: it outlives leaders."""
    ends: list[tuple[NodeDemand, DemandEnd]] = field(
        default_factory=list[tuple[NodeDemand, DemandEnd]]
    )
    refused: frozenset[str] = frozenset()
    """Uids of gangs for which the autoscaler has just said that no nodes come."""
    noticed: set[str] = field(default_factory=set[str])
    """Names of nodes that are about to go."""
    boot_seconds: float = 0.0
    ready_at: dict[str, float] = field(default_factory=dict[str, float])
    """When the ordered nodes are in service."""
    broken_seconds: float = 0.0
    """For how long gangs lacked a node, all of them together."""
    submitted: int = 0
    ordered: int = 0
    idle: int = 0
    """How many nodes were removed because nobody used them, beside those that were about to go."""

    def submit(self) -> None:
        """Another gang waits."""
        random, pools = self.random, sorted(self.limits)
        self.waiting.append(
            gang(
                f"g{self.submitted}",
                nodes=random.randint(1, 5),
                gpus=random.choice([8, 8, 8, 4]),
                at=self.now,
                priority=random.choice([0, 0, 0, 1]),
                pools=tuple(random.sample(pools, random.randint(1, len(pools)))),
            )
        )
        self.submitted += 1

    def withdraw(self) -> None:
        """Somebody deletes a job that waits."""
        if self.waiting:
            self.waiting.remove(self.random.choice(self.waiting))

    def refuse(self) -> None:
        """The autoscaler says of a request that no nodes come for it."""
        if self.placeholders:
            demand = self.random.choice(list(self.placeholders))
            self.refused = frozenset({demand.uid})

    def end(self, uid: str) -> None:
        """A gang ends."""
        del self.running[uid]

    def notice(self) -> None:
        """The cloud says of a node in use that it is about to go."""
        if self._used - self.noticed:
            self.noticed.add(self.random.choice(sorted(self._used - self.noticed)))

    def take_back(self) -> None:
        """A node that was about to go stays."""
        if self.noticed:
            self.noticed.remove(self.random.choice(sorted(self.noticed)))

    def lose(self) -> None:
        """A node goes, if possible one that was about to."""
        names = sorted(self.noticed or self._used)
        if names:
            name = self.random.choice(names)
            self.noticed.discard(name)
            del self.nodes[name]
            for uid, held in self.running.items():
                there = {i for i, place in enumerate(held.assignment) if place == name}
                self.running[uid] = replace(held, lost=held.lost | there)

    @property
    def _used(self) -> set[str]:
        names = (name for held in self.running.values() for name in held.assignment)
        return self.nodes.keys() & set(names)

    def look(self, seconds: float = LOOK_SECONDS) -> None:
        """Time passes."""
        self.now += seconds
        self.broken_seconds += seconds * sum(bool(held.lost) for held in self.running.values())

    def change_leader(self) -> None:
        """Another process leads: it knows what the placeholders say."""
        self.demands = NodeDemands(
            open=tuple(
                replace(demand, shares=(NOTHING,) * len(shares), started_at=None)
                for demand, shares in self.placeholders.items()
            )
        )

    def cycle(self) -> bool:
        """The operator decides; whether anything changed."""
        before = self.demands
        offers = before.within(self._offers(), now=self.now)
        snapshot = replace(self.snapshot(), offers=offers, asked=before.asked)
        decisions = run(snapshot, *self.waiting, now=self.now)
        for pool, limit in self.limits.items():
            needed = sum(need.nodes for need in decisions.needs_nodes if need.pool == pool)
            present = sum(each.pool == pool for each in self.nodes.values())
            assert needed == 0 or needed + present <= limit
        after = demands_after(
            before,
            needs=decisions.needs_nodes,
            started={placed.uid for placed in decisions.placed},
            refused=self.refused,
            running=self.running.keys(),
            bound=self.running.keys(),
            timeouts=dict.fromkeys(self.limits, TIMEOUT),
            now=self.now,
        )
        gangs = {each.uid: each for each in self.waiting}
        for placed in decisions.placed:
            if placed.uid in self.running:
                held = self.running[placed.uid]
                self.running[placed.uid] = replace(
                    held, assignment=placed.assignment, lost=frozenset()
                )
                continue
            started = gangs[placed.uid]
            self.running[placed.uid] = admitted(started, *placed.assignment, pool=placed.pool)
            self.waiting.remove(started)
        self.demands, self.refused = after.demands, frozenset()
        self.ends += after.ended
        self._write_placeholders()
        return bool(decisions.placed) or after.demands != before

    def _write_placeholders(self) -> None:
        asked = {each.uid: each for each in self.demands.open}
        assert len(asked) == len(self.demands.open)  # nobody asks twice
        known = {self._name(each): shares for each, shares in self.placeholders.items()}
        self.placeholders = {
            each: known.get(self._name(each), each.shares)
            for each in self.demands.open
            if each.started_at is None
        }

    @staticmethod
    def _name(demand: NodeDemand) -> tuple[str, str, str, float]:
        return (demand.uid, demand.pool, demand.zone, demand.asked_at)

    def scale_up(self, *, most: int) -> bool:
        """The autoscaler adds nodes for what does not fit; whether it added any."""
        free = self._free()
        before = self.ordered
        for demand, share in self._pending():
            place = (demand.pool, demand.zone)
            fits = next(
                (name for name, gpus in free.items() if self._is_in(name, place, share, gpus)), None
            )
            if fits is None and self.ordered - before < most and self._has_more(place):
                fits = self._add(place)
                free[fits] = GPUS
            if fits is not None:
                free[fits] -= share.gpus
        return self.ordered > before

    def scale_down(self, *, chance: float) -> bool:
        """Idle nodes that no placeholder fits on go, each with this chance; whether any went."""
        before = len(self.nodes)
        free = self._free()
        idle = {name for name, gpus in free.items() if gpus == GPUS}
        for demand, share in self._pending():
            place = (demand.pool, demand.zone)
            for name, gpus in free.items():
                if self._is_in(name, place, share, gpus):
                    free[name] -= share.gpus
                    idle.discard(name)
                    break
        for name in sorted(idle):
            if self.random.random() < chance:
                self.idle += name not in self.noticed
                self.noticed.discard(name)
                del self.nodes[name]
        return len(self.nodes) < before

    def settle(self, *, rounds: int) -> None:
        """Bring all that the cloud has until nobody waits for it, so many rounds at most."""
        for _ in range(rounds):
            changed = self.cycle()
            changed |= self.scale_up(most=1000)
            changed |= self.scale_down(chance=1.0)
            if changed:
                self.look()
                continue
            change = self.demands.next_change(dict.fromkeys(self.limits, TIMEOUT), now=self.now)
            if change is None or not (any(map(self.could_start, self.waiting)) or self.repairable):
                return
            self.now = max(self.now, change)

    def could_start(self, item: Gang) -> bool:
        """Whether the cloud has room for it beside what runs."""
        nodes = -(-item.nodes // (GPUS // item.per_pod.gpus))
        used = self._used
        return any(
            most - sum(self._place(name) == (pool, zone) for name in used) >= nodes
            and self.limits[pool] - sum(self._place(name)[0] == pool for name in used) >= nodes
            for (pool, zone), most in self.cloud.items()
            if pool in item.pools
        )

    @property
    def repairable(self) -> list[str]:
        """The broken gangs for which the cloud has room."""
        return [
            held.gang.key
            for held in self.running.values()
            if held.lost
            and self.could_start(replace(held.gang, nodes=len(held.lost), pools=(held.pool,)))
        ]

    def snapshot(self) -> Snapshot:
        """The cluster now."""
        pools = tuple(sorted(self.limits))
        quota = Queue(name="research", nominal=dict.fromkeys(pools, 10_000))
        return cluster(
            *map(self._seen, self.nodes.values()),
            levels=("zone",),
            pools=pools,
            queues=(quota,),
            running=map(self._displaced, self.running.values()),
        )

    def _seen(self, each: Node) -> Node:
        starting = self.now < self.ready_at.get(each.name, 0.0)
        return replace(each, starting=starting, unschedulable=each.name in self.noticed)

    def _displaced(self, held: Admitted) -> Admitted:
        there = {i for i, name in enumerate(held.assignment) if name in self.noticed}
        return held if held.lost else replace(held, displaced=frozenset(there), must_move=True)

    def _offers(self) -> tuple[NodeOffer, ...]:
        return tuple(
            NodeOffer(
                node=node("new", zone, gpus=GPUS, pool=pool),
                zone=zone,
                pool_limit=self.limits[pool],
            )
            for pool, zone in self.cloud
        )

    def _pending(self) -> Iterator[tuple[NodeDemand, Resources]]:
        for demand, shares in self.placeholders.items():
            for share in shares:
                yield demand, share

    def _free(self) -> dict[str, int]:
        return {each.name: GPUS - each.used.gpus for each in self.snapshot().nodes}

    def _place(self, name: str) -> Place:
        return self.nodes[name].pool, self.nodes[name].domains[0]

    def _is_in(self, name: str, place: Place, share: Resources, gpus: int) -> bool:
        is_open = name not in self.noticed
        return is_open and self._place(name) == place and gpus >= share.gpus

    def _has_more(self, place: Place) -> bool:
        return sum(self._place(name) == place for name in self.nodes) < self.cloud[place]

    def _add(self, place: Place) -> str:
        pool, zone = place
        name = f"{pool}-{zone}-{self.ordered:03d}"
        self.nodes[name] = node(name, zone, gpus=GPUS, pool=pool)
        self.ready_at[name] = self.now + self.boot_seconds
        self.ordered += 1
        return name


def growing_world(seed: int) -> GrowingWorld:
    """One or two pools, each in one zone or two, and a cloud that has too few nodes for some."""
    random = Random(f"growing {seed}")
    cloud: dict[Place, int] = {}
    limits: dict[str, int] = {}
    for pool in random.sample(["a100", "h100"], random.randint(1, 2)):
        zones = random.choice([[""], ["z1"], ["z1", "z2"]])
        cloud.update({(pool, zone): random.randint(2, 8) for zone in zones})
        limits[pool] = random.randint(4, 12)
    return GrowingWorld(random=random, cloud=cloud, limits=limits)
