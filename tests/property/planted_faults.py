"""Exceptions that tests plant in the scheduler for one gang, and random clusters for them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Container, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from inspect import CO_GENERATOR
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any

import pytest

from drumline_scheduler import (
    Admitted,
    Budget,
    CycleInput,
    Decisions,
    Gang,
    MoveBudget,
    NodeOffer,
    Queue,
    Resources,
    WaitingRule,
    WhenSpent,
)
from drumline_scheduler.model import AskedNodes
from drumline_scheduler.queueing.groups import GangGroup
from tests.property.scheduling_lifetime import Life
from tests.property.scheduling_mixed_life import MixedLife
from tests.property.scheduling_policy_life import PolicyLife
from tests.property.scheduling_worlds import DRAWN, Feature, World, world
from tests.unit.scheduler.builders import gang


class PlantedError(Exception):
    """Raised for one gang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A method in which an exception is planted."""

    owner: type
    method: str
    uids: Callable[..., list[str]]
    """Uids of the gangs that a call is about."""

    def __str__(self) -> str:
        return f"{self.owner.__name__}.{self.method}"


def by_keyword(_: object, *__: object, gang: Gang, **___: object) -> list[str]:
    return [gang.uid]


def first_gang(_: object, gang: Gang, *__: object, **___: object) -> list[str]:
    return [gang.uid]


def first_held(_: object, held: Admitted, *__: object, **___: object) -> list[str]:
    return [held.gang.uid]


def moving_unit(_: object, unit: Any) -> list[str]:
    return [unit.held.gang.uid]


def first_of_group(_: object, group: GangGroup) -> list[str]:
    return [each.uid for each in group.members[:1]]


def requesting(_: object, *, requests: Any, **__: object) -> list[str]:
    return [each.gang.uid for each in requests]


@contextmanager
def planted(place: Place, *uids: str) -> Generator[Counter[str]]:
    """Raise in a method for some gangs, and count how often."""
    real, raised = getattr(place.owner, place.method), Counter[str]()

    def method(*args: Any, **named: Any) -> Any:
        for uid in place.uids(*args, **named):
            if uid in uids:
                raised[uid] += 1
                raise PlantedError("planted")
        return real(*args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place.owner, place.method, method)
        yield raised


@cache
def some_world(number: int) -> World:
    """A random cluster in the middle of its life, with everything that a cycle can decide."""
    random = Random(number)
    if number % 2:
        features = frozenset(random.sample(list(DRAWN), random.randint(2, 6)))
        return world(number, features)
    life: Life | MixedLife = Life(number) if number % 4 else MixedLife(number)
    for _ in range(random.randint(2, 12)):
        life.happen(random.choice(life.events))
    item = World(
        snapshot=life.snapshot(), pending=tuple(life.pending), policy=life.policy, now=life.clock
    )
    if number % 8 == 2:  # two gangs of a group; running gangs that would rather be in pool b
        group = [gang(f"g{i}", queue="x", pool="a", group="g", group_gangs=2) for i in range(2)]
        return replace(
            item,
            pending=(*item.pending, *group),
            policy=replace(item.policy, move_back=True, moves=MoveBudget(gangs=3, gpu_seconds=1e6)),
            snapshot=replace(
                item.snapshot,
                admitted=tuple(
                    held
                    if held.is_residual
                    else replace(held, gang=replace(held.gang, pool=None, pools=("b", "a")))
                    for held in item.snapshot.admitted
                ),
            ),
        )
    return item


@cache
def full_world(number: int) -> World:
    """A random cluster that has what other random ones lack.

    Pools grow, some queues are drained, out of budget or nearly, some gangs should have left, and
    nodes that are about to go certainly go.
    """
    random = Random(f"full {number}")
    if number % 2:
        item = world(number, frozenset(random.sample(list(Feature), random.randint(3, 8))))
        snapshot = item.given()
    else:
        life = PolicyLife(number)
        for _ in range(random.randint(2, 12)):
            life.happen(random.choice(life.events))
        item = World(snapshot=life.snapshot(), pending=tuple(life.pending), now=life.clock)
        snapshot, item = item.snapshot, replace(item, policy=life.policy)
    offers = tuple(
        NodeOffer(
            node=replace(each, name=f"new-{each.pool}", used=Resources(), unschedulable=False),
            zone=random.choice(["", "z"]),
            pool_limit=random.randint(1, 12),
        )
        for each in {node.pool: node for node in snapshot.nodes}.values()
    )
    asked = tuple(
        AskedNodes(uid=each.uid, pool=offers[0].node.pool, zone=offers[0].zone, nodes=1)
        for each in item.pending
        if random.random() < 0.3
    )
    queues = tuple(_strained(random, queue) for queue in snapshot.queues)
    admitted = tuple(
        replace(_perhaps_overdue(random, held, now=item.now), must_move=bool(held.displaced))
        for held in snapshot.admitted
    )
    waits = tuple(
        replace(each, queue="none") if random.random() < 0.05 else each for each in item.pending
    )
    return replace(
        item,
        snapshot=replace(
            snapshot,
            queues=queues,
            admitted=admitted,
            offers=offers if random.random() < 0.7 else (),
            asked=asked,
            spent={queue.name: {0: random.choice([10, 3000])} for queue in queues},
        ),
        pending=waits,
        percents={},
        groups=(),
        policy=replace(item.policy, waiting=random.choice(list(WaitingRule))),
    )


def _strained(random: Random, queue: Queue) -> Queue:
    chance = random.random()
    if chance < 0.15:
        return replace(queue, drained=True, held=True)
    if chance < 0.4:
        spent = random.choice(list(WhenSpent))
        return replace(queue, budget=Budget(gpu_hours=1, window_days=7, when_spent=spent))
    return queue


def _perhaps_overdue(random: Random, held: Admitted, *, now: float) -> Admitted:
    if random.random() < 0.2 and not (held.lost or held.is_foreign):
        return replace(held, leaving=True, leaves_by=now - random.choice([-10.0, 1e6]))
    return held


def cycle_of(item: World) -> CycleInput:
    return CycleInput(
        snapshot=item.snapshot, pending=item.pending, policy=item.policy, now=item.now
    )


def of_others(decisions: Decisions, uid: str) -> Decisions:
    """Return the decisions without the answers and the fault of one gang."""
    return replace(
        decisions,
        blocked=tuple(each for each in decisions.blocked if each.uid != uid),
        order=tuple(each for each in decisions.order if each != uid),
        stay=tuple(each for each in decisions.stay if each != uid),
        faults=(),
    )


@dataclass(frozen=True, slots=True)
class CallSite:
    """A function of the scheduler, called about a gang."""

    code: CodeType
    uid: str

    def __str__(self) -> str:
        return f"{Path(self.code.co_filename).name} {self.code.co_name} {self.uid}"


@cache
def may_be_planted(file: str) -> bool:
    """Return whether a file decides about gangs. Values and the handling of exceptions do not."""
    folder = Path(file).parent
    if folder.name == "drumline_scheduler" and "fault" in file:
        return False
    return "drumline_scheduler" in folder.parts and folder.name != "model"


@contextmanager
def traced(
    seen: dict[CallSite, int],
    *,
    raising: CallSite | None = None,
    files: Callable[[str], bool] = may_be_planted,
    uids: Container[str] = (),
) -> Generator[None]:
    """Count the calls with a gang in their parameters, and raise in those of one site.

    Args:
        seen: the numbers of calls.
        raising: the site that raises.
        files: returns whether the functions of a file count.
        uids: uids of gangs. A parameter that is one of them, or has one, is about a gang, too.
    """

    def uid_of(value: object) -> str | None:
        item = value.gang if isinstance(value, Admitted) else value
        if isinstance(item, Gang):
            return item.uid
        uid = item if isinstance(item, str) else getattr(item, "uid", None)
        return uid if isinstance(uid, str) and uid in uids else None

    def trace(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        # A generator is also called to close it, and no exception leaves it then.
        if event != "call" or code.co_flags & CO_GENERATOR or not files(code.co_filename):
            return
        for value in frame.f_locals.values():
            uid = uid_of(value)
            if uid is not None:
                site = CallSite(code, uid)
                seen[site] = seen.get(site, 0) + 1
                if site == raising:
                    raise PlantedError("planted")
                return

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
