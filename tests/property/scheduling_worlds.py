"""Small random clusters in which chosen features are at work together.

A world is made of one seed. Every feature can be taken out of a finished world again, so that a
test can see whether it made any difference there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random
from typing import TypeVar

from drumline.controller.queues.conversion import nominal_of
from drumline_api.trainingqueue import PoolQuota, TrainingQueueSpec
from drumline_scheduler import (
    Admitted,
    CycleInput,
    Decisions,
    Gang,
    Node,
    Override,
    Policy,
    Pool,
    PreemptionRule,
    Queue,
    Reclaim,
    Resources,
    Role,
    Slice,
    Snapshot,
    WaitingRule,
    WithinQueue,
    decide,
)
from drumline_scheduler.placement.gpu_counts import GpuCounts
from tests.property.scheduling_pod_groups import ForeignGroup

Item = TypeVar("Item")
NOW = 1000.0
LEVELS = ("block", "rack")
PREEMPTS = PreemptionRule(within_queue=WithinQueue.LOWER_PRIORITY, reclaim=Reclaim.ANY)
PLENTY = {"a": 1000, "b": 1000}


class Feature(StrEnum):
    REQUIRED = "required level"
    PREFERRED = "preferred level"
    SLICES = "slices"
    BALANCED = "balanced"
    ROLES = "roles"
    MINIMUM = "minimum size"
    ELASTIC = "elastic"
    BORROWING = "borrowing"
    USER_CAP = "user cap"
    POOLS = "several pools"
    RESERVATION = "reservation"
    PREEMPTION = "preemption"
    MIN_RUNTIME = "minimum runtime"
    DELAY = "preemption delay"
    RECLAIM = "reclaim of lower priority"
    OVERRIDE = "override"
    GROUP = "group"
    DEPARTMENT = "guaranteed department"
    LOWERED = "lowered quota"
    EXCLUSION = "node exclusion"
    PERCENT = "quota in percent"
    POD_GROUP = "foreign pod group"


DRAWN = tuple(
    each
    for each in Feature
    if each
    not in {*(Feature.DELAY, Feature.RECLAIM, Feature.OVERRIDE, Feature.GROUP, Feature.DEPARTMENT)}
    if each not in {Feature.LOWERED, Feature.PERCENT, Feature.POD_GROUP}
)
"""The features that seeds of other tests draw from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What one cycle is asked."""

    snapshot: Snapshot
    pending: tuple[Gang, ...]
    policy: Policy = field(default_factory=Policy)
    now: float = NOW
    percents: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    """Quotas in percent of the pool's GPUs by queue and pool, beside the numbers of the queues."""
    groups: tuple[ForeignGroup, ...] = ()
    """Foreign pods that leave together. The nodes count them, the admitted gangs do not."""
    grouped: bool = True
    """False: the pods of `groups` leave one by one."""

    def decide(self) -> Decisions:
        return decide(
            CycleInput(
                snapshot=self.given(), pending=self.pending, policy=self.policy, now=self.now
            )
        )

    def given(self) -> Snapshot:
        """The snapshot as the operator converts it."""
        admitted = [
            held
            for group in self.groups
            for held in (group.converted() if self.grouped else group.converted_apart())
        ]
        counts = GpuCounts.of(self.snapshot.nodes)
        queues = tuple(
            replace(
                queue,
                nominal=nominal_of(spec, counts.healthy),
                lasting_nominal=nominal_of(spec, counts.all),
            )
            if (spec := self._spec(queue)) is not None
            else queue
            for queue in self.snapshot.queues
        )
        return replace(self.snapshot, queues=queues, admitted=(*self.snapshot.admitted, *admitted))

    def by_hand(self) -> Snapshot:
        """The same, by definition: nothing of the operator's is asked."""
        gpus, healthy = dict[str, int](), dict[str, int]()
        for node in self.snapshot.nodes:
            gpus[node.pool] = gpus.get(node.pool, 0) + node.allocatable.gpus
            if node.ready and not (node.unschedulable or node.distrusted or node.closed):
                healthy[node.pool] = healthy.get(node.pool, 0) + node.allocatable.gpus

        def quota(queue: Queue, of: Mapping[str, int]) -> dict[str, int]:
            share = self.percents[queue.name]
            return {
                pool: max(number, share.get(pool, 0) * of.get(pool, 0) // 100)
                for pool, number in queue.nominal.items()
            }

        queues = tuple(
            replace(queue, nominal=quota(queue, healthy), lasting_nominal=quota(queue, gpus))
            if queue.name in self.percents
            else queue
            for queue in self.snapshot.queues
        )
        if self.grouped:
            admitted = [group.by_hand() for group in self.groups]
        else:
            admitted = [held for group in self.groups for held in group.by_hand_apart()]
        return replace(self.snapshot, queues=queues, admitted=(*self.snapshot.admitted, *admitted))

    def _spec(self, queue: Queue) -> TrainingQueueSpec | None:
        share = self.percents.get(queue.name)
        if share is None:
            return None
        quotas = [
            PoolQuota(gpu_pool=pool, nominal_gpus=number, nominal_percent=share.get(pool))
            for pool, number in queue.nominal.items()
        ]
        return TrainingQueueSpec(quotas=quotas)

    def shuffled(self, random: Random) -> World:
        """The same with everything in another order."""

        def mixed(items: Sequence[Item]) -> tuple[Item, ...]:
            return tuple(random.sample(items, len(items)))

        snapshot = self.snapshot
        return replace(
            self,
            snapshot=replace(
                snapshot,
                nodes=mixed(snapshot.nodes),
                pools=mixed(snapshot.pools),
                queues=mixed(snapshot.queues),
                admitted=mixed(snapshot.admitted),
            ),
            pending=mixed(self.pending),
        )

    def without(self, feature: Feature) -> World:
        """The same with one feature taken out of it."""
        change_gang = _PLAIN_GANG.get(feature, lambda each: each)
        change_queue = _PLAIN_QUEUE.get(feature, lambda each: each)
        snapshot = replace(
            self.snapshot,
            queues=tuple(change_queue(queue) for queue in self.snapshot.queues),
            admitted=tuple(_plain_admitted(held, change_gang) for held in self.snapshot.admitted),
        )
        policy = self.policy
        if feature is Feature.RESERVATION:
            policy = replace(policy, waiting=WaitingRule.BEST_EFFORT)
        if feature is Feature.DELAY:
            policy = replace(policy, preemption_delay_seconds=0.0)
        pending = tuple(change_gang(gang) for gang in self.pending)
        return replace(
            self,
            snapshot=snapshot,
            pending=pending,
            policy=policy,
            percents={} if feature is Feature.PERCENT else self.percents,
            grouped=self.grouped and feature is not Feature.POD_GROUP,
        )


def _plain_admitted(held: Admitted, change: Callable[[Gang], Gang]) -> Admitted:
    plain = change(held.gang)
    same = len(held.assignment) == plain.extras + plain.nodes or plain.sizes
    return replace(held, gang=plain) if same and plain.extras == held.gang.extras else held


_PLAIN_GANG: dict[Feature, Callable[[Gang], Gang]] = {
    Feature.REQUIRED: lambda each: replace(each, required_level=None),
    Feature.PREFERRED: lambda each: replace(each, preferred_level=None),
    Feature.SLICES: lambda each: replace(each, slices=()),
    Feature.BALANCED: lambda each: replace(each, balanced_level=None),
    Feature.ROLES: lambda each: replace(each, roles=()),
    Feature.MINIMUM: lambda each: each if each.resizable else replace(each, sizes=()),
    Feature.ELASTIC: lambda each: replace(each, sizes=()) if each.resizable else each,
    Feature.POOLS: lambda each: replace(each, pools=(), pool="a") if each.pools else each,
    Feature.EXCLUSION: lambda each: replace(each, excluded_nodes=frozenset()),
    Feature.GROUP: lambda each: replace(each, group="", group_gangs=1),
}
_PLAIN_QUEUE: dict[Feature, Callable[[Queue], Queue]] = {
    Feature.BORROWING: lambda each: replace(each, parent=None),
    Feature.USER_CAP: lambda each: replace(each, user_limit=None),
    Feature.PREEMPTION: lambda each: replace(each, preemption=PreemptionRule()),
    Feature.MIN_RUNTIME: lambda each: replace(each, min_runtime_seconds=0.0),
    Feature.RECLAIM: lambda each: replace(
        each, preemption=replace(each.preemption, reclaim=Reclaim.ANY)
    ),
    Feature.OVERRIDE: lambda each: replace(each, overrides=()),
    Feature.LOWERED: lambda each: replace(each, evicts_excess=False),
    Feature.DEPARTMENT: lambda each: (
        replace(each, nominal={"a": 0, "b": 0}) if each.name == "dept" else each
    ),
}


def world(seed: int, features: frozenset[Feature]) -> World:
    """A cluster of two pools, some jobs that run and some that wait."""
    random = Random(f"{seed} {sorted(features)}")
    shaped = bool(features & {Feature.PREFERRED, Feature.BALANCED})
    nodes = _nodes(random, roomy=shaped)
    if features & {
        *(Feature.MIN_RUNTIME, Feature.DELAY, Feature.RECLAIM, Feature.OVERRIDE, Feature.GROUP),
        *(Feature.DEPARTMENT, Feature.POD_GROUP),
    }:
        features |= {Feature.PREEMPTION}
    if features & {
        *(Feature.RECLAIM, Feature.OVERRIDE, Feature.DEPARTMENT, Feature.LOWERED),
        *(Feature.PERCENT, Feature.POD_GROUP),
    }:
        features |= {Feature.BORROWING}
    if Feature.PERCENT in features:
        nodes = [_perhaps_away(random, node) for node in nodes]
    queues = _queues(random, features)
    held: list[Admitted] = []
    crowd = 4 if Feature.PREEMPTION in features else 2
    for i in range(random.randint(0, crowd if shaped else 5)):
        held += _started(random, i, nodes=nodes, held=held, features=features)
    pending = tuple(
        some_gang(random, f"w{i}", features=features, at=float(i), hero=i == 0)
        for i in range(random.randint(1, 4))
    )
    if Feature.GROUP in features:
        first, *later = pending
        second = later[0] if later else some_gang(random, "w9", features=features, at=9.0)
        both = [replace(each, group="g", group_gangs=2) for each in (first, second)]
        pending = (*both, *later[1:])
    groups: list[ForeignGroup] = []
    if Feature.POD_GROUP in features:
        groups = [ForeignGroup.of(random, each) for each in held[1::2]]
        held = [each for each in held if each.gang.key not in {group.of_key for group in groups}]
    waiting = WaitingRule.BACKFILL if Feature.RESERVATION in features else WaitingRule.BEST_EFFORT
    return World(
        snapshot=_with(nodes, queues, held, groups=groups),
        pending=pending,
        percents=_percents(random, queues) if Feature.PERCENT in features else {},
        groups=tuple(groups),
        policy=Policy(
            waiting=waiting,
            reservations=random.choice([1, 2, 16]),
            restart_seconds=0.0,
            priority_seconds=0.0,
            # Gangs wait since 0, 1, 2 and 3: those from the first, second or third one are too new.
            preemption_delay_seconds=NOW + random.choice([0.5, -0.5, -1.5])
            if Feature.DELAY in features
            else 0.0,
        ),
    )


def without(item: World, keys: Sequence[str]) -> World:
    """The world once these running gangs are gone, and their pods with them."""
    snapshot = item.snapshot
    gone = [held for held in snapshot.admitted if held.gang.key in keys]
    taken = {node.name: bound(node.name, gone) for node in snapshot.nodes}
    nodes = tuple(replace(node, used=node.used - taken[node.name]) for node in snapshot.nodes)
    left = tuple(held for held in snapshot.admitted if held not in gone)
    return replace(item, snapshot=replace(snapshot, nodes=nodes, admitted=left))


def bound(name: str, held: Sequence[Admitted]) -> Resources:
    total = Resources()
    for each in held:
        for position, place in enumerate(each.assignment):
            if place == name and position not in each.reserved | each.lost:
                total += each.gang.request_of(position)
    return total


def _nodes(random: Random, *, roomy: bool) -> list[Node]:
    """Where levels only shape a placement, there has to be room for more than one."""
    first = [
        _node(random, f"a{i}", "a", gpus=(2, 2, 4) if roomy else (1, 2, 4, 4))
        for i in range(random.randint(4 if roomy else 3, 6))
    ]
    return first + [
        _node(random, f"b{i}", "b", gpus=(1, 2, 4)) for i in range(random.randint(1, 3))
    ]


def _node(random: Random, name: str, pool: str, *, gpus: Sequence[int]) -> Node:
    missing = random.random() < 0.05
    return Node(
        name=name,
        pool=pool,
        domains=("" if missing else random.choice(["b0", "b0", "b1"]), random.choice(["r0", "r1"])),
        allocatable=Resources(
            gpus=random.choice(gpus),
            cpu_millis=random.choice([4000, 64000, 64000]),
            pods=random.choice([3, 110, 110]),
        ),
        used=Resources(gpus=random.choice([0, 0, 0, 0, 1]), cpu_millis=1000),
        unschedulable=random.random() < 0.06,
    )


def _perhaps_away(random: Random, node: Node) -> Node:
    """The node, or one that gives no quota in percent for now."""
    if random.random() < 0.75:
        return node
    return replace(node, **random.choice([{"ready": False}, {"unschedulable": True}]))


def _percents(random: Random, queues: Sequence[Queue]) -> dict[str, dict[str, int]]:
    """Quotas in percent of some queues."""
    return {
        queue.name: {"a": random.choice([10, 25, 34, 50]), "b": random.choice([1, 50, 100])}
        for queue in queues
        if random.random() < 0.6
    }


def _queues(random: Random, features: frozenset[Feature]) -> tuple[Queue, ...]:
    borrows = Feature.BORROWING in features
    rule = PREEMPTS if Feature.PREEMPTION in features else PreemptionRule()
    if Feature.RECLAIM in features:
        rule = replace(rule, reclaim=Reclaim.LOWER_PRIORITY)
    own = [{"a": random.randint(1, 5), "b": random.randint(0, 2)} for _ in range(2)]
    lends = random.choice([None, None, {"a": random.randint(0, 3)}])
    most = random.choice([None, None, {"a": random.randint(1, 4)}])
    young = random.choice([50.0, 200.0]) if Feature.MIN_RUNTIME in features else 0.0
    cap = {"a": random.randint(1, 5)} if Feature.USER_CAP in features else None
    jobs = ["w0", "w0", "w1", *(["r0", "r1"] if Feature.OVERRIDE in features else [])]
    until = NOW + random.choice([1.0, 500.0]) if Feature.OVERRIDE in features else 0.0
    named = random.sample(jobs, 2) if Feature.OVERRIDE in features else []

    def queue(name: str, nominal: dict[str, int], parent: str | None) -> Queue:
        return Queue(
            name=name,
            nominal=nominal if borrows else PLENTY,
            parent=parent if borrows else None,
            lending_limit=lends if name == "y" else None,
            borrowing_limit=most if name == "x" else None,
            preemption=rule,
            min_runtime_seconds=young,
            user_limit=cap,
            evicts_excess=Feature.LOWERED in features,
            overrides=tuple(
                Override(job=f"training/{job}", until=until, granted_by="ann", reason="launch")
                for job in sorted({*named})
            ),
        )

    if Feature.DEPARTMENT in features:
        # x has no quota of its own, and reclaims what its department is guaranteed.
        return (
            queue("org", {"a": 0}, None),
            queue("dept", {"a": random.randint(1, 5), "b": 1}, "org"),
            queue("x", {"a": 0, "b": 0}, "dept"),
            queue("y", own[1], "org"),
        )
    return (
        queue("org", {"a": random.choice([0, 0, 2])}, None),
        queue("x", own[0], "org"),
        queue("y", own[1], "org"),
    )


def _started(
    random: Random,
    i: int,
    *,
    nodes: Sequence[Node],
    held: Sequence[Admitted],
    features: frozenset[Feature],
) -> list[Admitted]:
    """One running gang at most, wherever there is room for its pods."""
    gang = some_gang(random, f"r{i}", features=features & {Feature.ELASTIC}, at=-10.0 + i)
    priorities = [0, 1, 2] if Feature.RECLAIM in features else [0, 0, 1]
    gang = replace(gang, priority=random.choice(priorities))
    used = _with(nodes, (), held).nodes
    free = {node.name: (node.allocatable - node.used) for node in used if node.pool == "a"}
    size = random.choice(gang.legal_sizes)
    places: list[str] = []
    for _ in range(size):
        open_to = [name for name, room in free.items() if gang.per_pod.fits_in(room)]
        if not open_to:
            return []
        places.append(random.choice(open_to))
        free[places[-1]] -= gang.per_pod
    return [
        Admitted(
            gang=replace(gang, pool="a", pools=(), required_level=None),
            pool="a",
            assignment=tuple(places),
            admitted_at=NOW - random.choice([10.0, 100.0, 500.0]),
            gpu_seconds_at_risk=float(random.randint(1, 600)),
        )
    ]


def some_gang(
    random: Random, name: str, *, features: frozenset[Feature], at: float, hero: bool = False
) -> Gang:
    """A gang with each of the features that a gang can have, or some of them."""

    def has(feature: Feature) -> bool:
        mixed = random.random() < 0.5
        return feature in features and (hero or mixed)

    spreads, near = has(Feature.BALANCED), has(Feature.PREFERRED)
    gpus = 1 if spreads or near else random.choice([1, 1, 1, 2, 2, 3])
    pods = random.choice([3, 4, 6] if spreads else [2, 2, 3] if near else [1, 2, 2, 3, 4, 4, 6])
    slices: tuple[Slice, ...] = ()
    if has(Feature.SLICES):
        pods = random.choice([4, 4, 6] if spreads else [2, 4, 4, 6])
        slices = random.choice(
            [
                (Slice(level="rack", pods=2),),
                (Slice(level="block" if spreads else "rack", pods=2),),
                (Slice(level="block", pods=2),),
                (Slice(level="rack", pods=2, required=False),),
                (Slice(level="block", pods=pods), Slice(level="rack", pods=2)),
            ]
        )
    step = slices[0].pods if slices else 1
    minimum, elastic = has(Feature.MINIMUM), has(Feature.ELASTIC)
    if minimum and elastic:
        minimum = hero == (len(name) % 2 == 0)
    sizes = tuple(
        sorted({step, max(step, pods // 2 // step * step), pods}) if minimum or elastic else ()
    )
    spare = random.choice([None, 50.0, 300.0, 1000.0])
    roles = random.choice(
        [
            (Role(name="launcher", pods=1, per_pod=_pod(0, 2)),),
            (Role(name="launcher", pods=1, per_pod=_pod(1, 1)),),
            (Role(name="store", pods=2, per_pod=_pod(1, 0)),),
            (
                Role(name="launcher", pods=1, per_pod=_pod(0, 1)),
                Role(name="store", pods=1, per_pod=_pod(2, 0)),
            ),
        ]
    )
    pools = random.choice([("b", "a"), ("a", "b")])
    pool_chosen = has(Feature.POOLS)
    return Gang(
        key=f"training/{name}",
        uid=f"uid-{name}",
        queue=random.choice(["x", "x", "x", "y", "org"]),
        nodes=pods,
        per_pod=_pod(gpus, random.choice([0, 0, 1, 3])),
        queued_at=at,
        priority=random.choice([0, 1, 1, 2]),
        pool=None if pool_chosen else "a",
        pools=pools if pool_chosen else (),
        required_level=("block" if spreads or near else random.choice(LEVELS))
        if has(Feature.REQUIRED)
        else None,
        preferred_level=random.choice(["rack", "rack", "block"]) if near else None,
        slices=slices,
        balanced_level=random.choice(["rack", "rack", "block"]) if spreads else None,
        roles=roles if has(Feature.ROLES) else (),
        excluded_nodes=frozenset(random.sample([f"a{i}" for i in range(6)], 2))
        if has(Feature.EXCLUSION)
        else frozenset(),
        sizes=sizes if len(sizes) > 1 else (),
        resizable=not minimum,
        user=random.choice(["ann", "bob"]),
        max_runtime_seconds=spare if Feature.RESERVATION in features else None,
    )


def _pod(gpus: int, cpu: int) -> Resources:
    return Resources(gpus=gpus, cpu_millis=1000 * cpu, pods=1)


def _with(
    nodes: Sequence[Node],
    queues: tuple[Queue, ...],
    held: Sequence[Admitted],
    *,
    groups: Sequence[ForeignGroup] = (),
) -> Snapshot:
    """The snapshot in which these gangs' pods are bound."""
    return Snapshot(
        nodes=tuple(
            replace(
                node,
                used=sum(
                    (group.on(node.name) for group in groups),
                    start=node.used + bound(node.name, held),
                ),
            )
            for node in nodes
        ),
        pools=(Pool(name="a", levels=LEVELS), Pool(name="b", levels=LEVELS)),
        queues=queues,
        admitted=tuple(held),
    )
