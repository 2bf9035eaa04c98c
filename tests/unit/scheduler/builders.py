"""Small clusters and gangs in one line each, and the world after a cycle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from drumline_scheduler import (
    Admitted,
    Budget,
    CycleInput,
    Decisions,
    Gang,
    Node,
    Policy,
    Pool,
    PreemptionRule,
    Queue,
    Reclaim,
    Resized,
    Resources,
    Snapshot,
    WaitingRule,
    WithinQueue,
    decide,
)
from drumline_scheduler.quota.usage_budgets import Budgets
from drumline_scheduler.work import TimeLimit, Work

BEST_EFFORT = Policy()
STRICT = Policy(waiting=WaitingRule.STRICT)


PREEMPTS = PreemptionRule(within_queue=WithinQueue.LOWER_PRIORITY, reclaim=Reclaim.ANY)


def pod(gpus: int = 1, *, cpu: int = 0, extended: tuple[tuple[str, int], ...] = ()) -> Resources:
    return Resources(gpus=gpus, cpu_millis=cpu * 1000, pods=1, extended=extended)


def room(
    gpus: int = 2, *, cpu: int = 64, pods: int = 110, extended: tuple[tuple[str, int], ...] = ()
) -> Resources:
    return Resources(gpus=gpus, cpu_millis=cpu * 1000, pods=pods, extended=extended)


def node(name: str, *domains: str, gpus: int = 2, pool: str = "h100", **changes: Any) -> Node:
    return replace(Node(name=name, pool=pool, allocatable=room(gpus), domains=domains), **changes)


def gang(
    name: str,
    *,
    nodes: int = 1,
    gpus: int = 1,
    at: float = 0.0,
    queue: str = "research",
    **changes: Any,
) -> Gang:
    base = Gang(
        key=f"training/{name}",
        uid=f"uid-{name}",
        queue=queue,
        nodes=nodes,
        per_pod=pod(gpus),
        queued_at=at,
    )
    return replace(base, **changes)


def admitted(item: Gang, *assignment: str, pool: str = "h100", **changes: Any) -> Admitted:
    """A running gang whose pods the nodes' `used` already shows (see `cluster`)."""
    return replace(Admitted(gang=item, pool=pool, assignment=assignment), **changes)


def cluster(
    *nodes: Node,
    levels: tuple[str, ...] = ("rack",),
    queues: tuple[Queue, ...] | None = None,
    running: Iterable[Admitted] = (),
    pools: tuple[str, ...] = ("h100",),
) -> Snapshot:
    """A snapshot in which `used` holds the running gangs' bound pods beside what is given."""
    held = tuple(running)
    return Snapshot(
        nodes=tuple(replace(node, used=node.used + bound(node.name, held)) for node in nodes),
        pools=tuple(Pool(name=name, levels=levels) for name in pools),
        queues=queues or (Queue(name="research", nominal=dict.fromkeys(pools, 10_000)),),
        admitted=held,
    )


def budgets(days: Mapping[int, int], *, budget: Budget, now: float) -> Budgets:
    """Which budgets are spent where the only queue has this one and had this."""
    owner = Queue(name="research", nominal={"h100": 10_000}, budget=budget)
    return Budgets(replace(cluster(queues=(owner,)), spent={owner.name: days}), now=now)


def bound(name: str, held: Iterable[Admitted]) -> Resources:
    """What the bound pods of these gangs request on a node."""
    total = Resources()
    for each in held:
        for index, place in enumerate(each.assignment):
            if place == name and index not in each.reserved and index not in each.lost:
                total += each.gang.request_of(index)
    return total


def queue(name: str, gpus: int = 0, *, parent: str | None = None, **changes: Any) -> Queue:
    """A queue that may preempt wherever the law allows it."""
    item = Queue(name=name, nominal={"h100": gpus}, parent=parent, preemption=PREEMPTS)
    return replace(item, **changes)


def racks(*, count: int = 2, nodes: int = 2, gpus: int = 2) -> list[Node]:
    """`count` racks of `nodes` nodes: rack-0 has n0, n1, ...; names sort across racks."""
    return [
        node(f"n{rack * nodes + i}", f"rack-{rack}", gpus=gpus)
        for rack in range(count)
        for i in range(nodes)
    ]


def run(
    snapshot: Snapshot, *pending: Gang, policy: Policy = BEST_EFFORT, now: float = 0.0
) -> Decisions:
    return decide(CycleInput(snapshot=snapshot, pending=pending, policy=policy, now=now))


def after(
    snapshot: Snapshot, pending: Iterable[Gang], decisions: Decisions, *, now: float = 0.0
) -> Snapshot:
    """The snapshot with the decisions assumed: new places are promised, nobody is bound yet, and
    victims are told to leave.
    """
    gangs = {gang.uid: gang for gang in pending}
    held = {held.gang.uid: held for held in snapshot.admitted}
    for placed in decisions.placed:
        if placed.replaced:
            before = held[placed.uid]
            held[placed.uid] = replace(
                before,
                assignment=placed.assignment,
                lost=frozenset(),
                reserved=before.reserved | frozenset(placed.replaced),
            )
        else:
            held[placed.uid] = Admitted(
                gang=replace(gangs[placed.uid], nominated=(), nominated_pool=""),
                pool=placed.pool,
                assignment=placed.assignment,
                reserved=frozenset(range(len(placed.assignment))),
                admitted_at=now,
            )
    for resized in decisions.resized:
        held[resized.uid] = after_resize(held[resized.uid], resized)
    for preemption in decisions.preemptions:
        for victim in preemption.victims:
            held[victim.uid] = replace(held[victim.uid], leaving=True)
    return replace(snapshot, admitted=tuple(held.values()))


def after_resize(held: Admitted, resized: Resized) -> Admitted:
    """The gang with its new size; what it gave up is free at once."""
    stays = {old: new for new, old in enumerate(resized.kept)}
    size = len(resized.kept) + len(resized.added)
    return replace(
        held,
        assignment=(*(held.assignment[old] for old in resized.kept), *resized.added),
        lost=frozenset(),
        reserved=frozenset(stays[old] for old in held.reserved if old in stays)
        | frozenset(range(len(resized.kept), size)),
    )


def still_waiting(pending: Iterable[Gang], decisions: Decisions) -> list[Gang]:
    """Who was not placed, with the places that are kept for them from now on."""
    started = {placed.uid for placed in decisions.placed}
    kept = {preemption.uid: preemption for preemption in decisions.preemptions}
    return [
        replace(gang, nominated=kept[gang.uid].assignment, nominated_pool=kept[gang.uid].pool)
        if gang.uid in kept
        else gang
        for gang in pending
        if gang.uid not in started
    ]


def without(snapshot: Snapshot, *names: str) -> Snapshot:
    """The snapshot once these running gangs are gone, and their pods with them."""
    keys = {f"training/{name}" for name in names}
    gone = [held for held in snapshot.admitted if held.gang.key in keys]
    left = tuple(held for held in snapshot.admitted if held.gang.key not in keys)
    nodes = tuple(replace(node, used=node.used - bound(node.name, gone)) for node in snapshot.nodes)
    return replace(snapshot, nodes=nodes, admitted=left)


def following(given: CycleInput, before: Decisions) -> CycleInput:
    """The cycle with what the one before it handed on."""
    return replace(
        given,
        deferred=before.deferred,
        put_off=before.put_off,
        passed=before.passed,
        known=before.known,
    )


def ticking(questions: int) -> Work:
    """The work of a cycle whose time is over after a number of readings of its clock."""
    times = count(1)
    return Work(limit=TimeLimit(clock=lambda: float(next(times)), seconds=float(questions)))
