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

from drumline_scheduler import Admitted, CycleInput, Gang, MoveBudget
from drumline_scheduler.queueing.groups import GangGroup
from tests.property.scheduling_lifetime import Life
from tests.property.scheduling_mixed_life import MixedLife
from tests.property.scheduling_worlds import DRAWN, World, world
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


def cycle_of(item: World) -> CycleInput:
    return CycleInput(
        snapshot=item.snapshot, pending=item.pending, policy=item.policy, now=item.now
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
