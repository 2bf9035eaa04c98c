"""Circles of unused objects are looked for between cycles, and those that last are set aside."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from drumline.controller.scheduler.garbage import (
    WHOLE_SECONDS,
    YOUNG_OBJECTS_LEFT,
    GarbageCollector,
)


class Circle:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _without_automatic_looks() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def unused_circle() -> weakref.ref[Circle]:
    return weakref.ref(Circle())


def cycles(collector: GarbageCollector, *, count: int) -> list[list[object]]:
    """Cycles of which each makes objects that last."""
    made = list[list[object]]()
    for _ in range(count):
        made.extend([] for _ in range(2 * YOUNG_OBJECTS_LEFT))
        collector.collect()
    return made


def test_unused_circles_of_a_cycle_are_freed_after_it() -> None:
    collector, circle = GarbageCollector(), unused_circle()
    collector.collect()
    assert circle() is not None, "few objects are new"
    cycles(collector, count=1)
    assert circle() is None


def test_what_lasts_is_set_aside_after_some_cycles() -> None:
    before = gc.get_freeze_count()
    collector = GarbageCollector()
    made = cycles(collector, count=5)
    assert gc.get_freeze_count() == before
    made += cycles(collector, count=20)
    assert gc.get_freeze_count() > before + len(made) // 2


def test_circles_that_were_set_aside_are_found_within_an_hour() -> None:
    now = 0.0
    collector = GarbageCollector(clock=lambda: now)
    item = Circle()
    made, circle = cycles(collector, count=20), weakref.ref(item)
    del item
    now = WHOLE_SECONDS - 1
    made += cycles(collector, count=20)
    assert circle() is not None, "it was set aside"
    now = WHOLE_SECONDS
    collector.collect()
    assert circle() is None
    assert gc.get_freeze_count() > len(made) // 2
