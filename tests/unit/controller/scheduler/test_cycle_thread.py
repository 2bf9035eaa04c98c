"""A search without an end is stopped, is one gang's answer, and holds up nobody else."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest

from drumline.controller.scheduler.cycle_thread import CycleLimits, CycleThread
from drumline_scheduler import BlockReason, CycleCache, CycleInput, Decisions, Gang, decide, work
from drumline_scheduler.admission import Admission
from drumline_scheduler.fault_isolation import MAX_LIMITS, TooManyFaultsError, _FaultSearch
from drumline_scheduler.queueing.pending_gangs import PendingGangs
from drumline_scheduler.work import CycleCutError, Work
from tests.patience import HANG_SECONDS
from tests.unit.scheduler.builders import BEST_EFFORT, cluster, gang, racks

QUICK = CycleLimits(gang_seconds=0.3, probe_seconds=0.3, attempt_seconds=60.0, look_seconds=0.02)
WANTED = tuple(gang(name, at=float(at)) for at, name in enumerate("abc"))


async def decided(
    *pending: Gang, limits: CycleLimits = QUICK, cache: CycleCache | None = None
) -> Decisions:
    cycle = CycleInput(snapshot=cluster(*racks()), pending=pending, policy=BEST_EFFORT, now=0.0)
    return await CycleThread(
        lambda counted: decide(cycle, cache=cache, work=counted), limits=limits
    ).result()


def endless_for(monkeypatch: pytest.MonkeyPatch, *uids: str, keeps: bool = False) -> None:
    """Plant a search without an end in the admission of some gangs."""
    admit: Callable[..., Any] = Admission.admit

    def planted(admission: Admission, wanted: Gang) -> Any:
        kept: list[bytes] = []
        while wanted.uid in uids:
            if keeps:
                kept.append(bytes(1 << 20))
        return admit(admission, wanted)

    monkeypatch.setattr(Admission, "admit", planted)


async def test_an_endless_search_is_the_answer_of_its_gang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endless_for(monkeypatch, "uid-b")
    ticks: list[object] = []
    ticking = asyncio.create_task(_tick(ticks))
    decisions = await decided(*WANTED, cache=CycleCache())
    ticking.cancel()
    assert {placed.uid for placed in decisions.placed} == {"uid-a", "uid-c"}
    (blocked,) = decisions.blocked
    assert (blocked.uid, blocked.reason) == ("uid-b", BlockReason.SCHEDULER_ERROR)
    assert "CycleCutError" in blocked.message
    assert [fault.uid for fault in decisions.faults] == ["uid-b"]
    assert len(ticks) > 1  # the event loop went on, as it has to for the lease


async def _tick(ticks: list[object]) -> None:
    while True:
        ticks.append(None)
        await asyncio.sleep(0)


async def test_a_search_that_takes_memory_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    endless_for(monkeypatch, "uid-b", keeps=True)
    limits = CycleLimits(gang_seconds=60.0, growth_bytes=64 << 20, look_seconds=0.01)
    decisions = await decided(*WANTED, limits=limits)
    assert [fault.uid for fault in decisions.faults] == ["uid-b"]
    assert len(decisions.placed) == 2


async def test_an_endless_search_outside_of_the_phases_is_traced_to_its_gang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    update: Callable[..., None] = PendingGangs.update

    def planted(pending: PendingGangs, gangs: Iterable[Gang], **limits: Any) -> None:
        gangs = tuple(gangs)
        while any(each.uid == "uid-b" for each in gangs):
            pass
        update(pending, gangs, **limits)

    monkeypatch.setattr(PendingGangs, "update", planted)
    limits = CycleLimits(gang_seconds=0.3, attempt_seconds=0.3, look_seconds=0.02)
    decisions = await decided(*WANTED, limits=limits)
    assert [fault.uid for fault in decisions.faults] == ["uid-b"]
    assert {placed.uid for placed in decisions.placed} == {"uid-a", "uid-c"}


async def test_a_gang_that_a_loop_happens_to_name_is_not_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    update: Callable[..., None] = PendingGangs.update

    def planted(pending: PendingGangs, gangs: Iterable[Gang], **limits: Any) -> None:
        gangs = tuple(gangs)
        uids = {each.uid for each in gangs}
        named = gangs[0] if gangs else None
        while "uid-b" in uids and named is not None:
            pass
        update(pending, gangs, **limits)

    monkeypatch.setattr(PendingGangs, "update", planted)
    limits = CycleLimits(
        gang_seconds=0.3, probe_seconds=0.3, attempt_seconds=0.3, look_seconds=0.02
    )
    decisions = await decided(*WANTED, limits=limits)
    assert [fault.uid for fault in decisions.faults] == ["uid-b"]
    assert {placed.uid for placed in decisions.placed} == {"uid-a", "uid-c"}


async def test_a_gang_that_is_slow_only_beside_another_one_is_not_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admit: Callable[..., Any] = Admission.admit

    def planted(admission: Admission, wanted: Gang) -> Any:
        while wanted.uid == "uid-a" and "uid-c" in admission._session.pending:
            pass
        return admit(admission, wanted)

    monkeypatch.setattr(Admission, "admit", planted)
    decisions = await decided(*WANTED)
    assert [(fault.uid, fault.is_certain) for fault in decisions.faults] == [("uid-c", True)]
    assert {placed.uid for placed in decisions.placed} == {"uid-a", "uid-b"}


async def test_a_gang_that_is_quick_alone_is_set_aside_for_one_cycle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first attempt hangs for a reason that no gang explains."""
    admit: Callable[..., Any] = Admission.admit
    hangs = [True]

    def planted(admission: Admission, wanted: Gang) -> Any:
        while hangs and wanted.uid == "uid-b":
            pass
        return admit(admission, wanted)

    def end_hanging(search: _FaultSearch, error: Exception) -> bool:
        hangs.clear()
        return set_aside(search, error)

    set_aside: Callable[..., bool] = _FaultSearch.set_aside
    monkeypatch.setattr(_FaultSearch, "set_aside", end_hanging)
    monkeypatch.setattr(Admission, "admit", planted)
    decisions = await decided(*WANTED)
    assert [(fault.uid, fault.is_certain) for fault in decisions.faults] == [("uid-b", False)]
    assert {placed.uid for placed in decisions.placed} == {"uid-a", "uid-c"}


async def test_a_search_that_was_cut_is_not_cut_again_while_its_gang_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its error is handled before the next attempt begins, slowly on a busy machine."""
    set_aside: Callable[..., bool] = _FaultSearch.set_aside

    def slow(search: _FaultSearch, error: Exception) -> bool:
        end = time.thread_time() + 0.15
        while time.thread_time() < end:
            pass
        return set_aside(search, error)

    monkeypatch.setattr(_FaultSearch, "set_aside", slow)
    endless_for(monkeypatch, "uid-b")
    limits = CycleLimits(gang_seconds=60.0, attempt_seconds=0.2, look_seconds=0.01)
    decisions = await decided(*WANTED, limits=limits)
    assert [fault.uid for fault in decisions.faults] == ["uid-b"]
    assert {placed.uid for placed in decisions.placed} == {"uid-a", "uid-c"}


async def test_a_call_ends_after_few_endless_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next cycle sets them aside and looks at the others."""
    pending = [gang(f"e{i}", at=float(i), key=f"team-{i}/e") for i in range(2 * MAX_LIMITS)]
    endless_for(monkeypatch, *(each.uid for each in pending))
    with pytest.raises(TooManyFaultsError) as raised:
        await decided(*pending, *WANTED)
    assert len(raised.value.faults) == MAX_LIMITS


async def test_a_search_with_too_many_steps_stops_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a thread, as in the simulator and in `drumline decide`."""
    admit: Callable[..., Any] = Admission.admit

    def planted(admission: Admission, wanted: Gang) -> Any:
        while wanted.uid == "uid-b":
            work.spend(1000)
        return admit(admission, wanted)

    monkeypatch.setattr(Admission, "admit", planted)
    monkeypatch.setattr(work, "MOST_GANG_STEPS", 100_000)
    cycle = CycleInput(snapshot=cluster(*racks()), pending=WANTED, policy=BEST_EFFORT, now=0.0)
    decisions = decide(cycle)
    assert [fault.uid for fault in decisions.faults] == ["uid-b"]
    assert len(decisions.placed) == 2


async def test_results_and_exceptions_are_handed_on() -> None:
    assert await CycleThread(lambda _: 7).result() == 7

    def fails(_: Work) -> None:
        raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        await CycleThread(fails).result()


async def test_a_cancelled_cycle_leaves_no_thread_behind() -> None:
    ended, began = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def endless(_: Work) -> None:
        try:
            loop.call_soon_threadsafe(began.set)
            while True:
                pass
        except CycleCutError:
            ended.set()
            raise

    waiting = asyncio.create_task(CycleThread(endless).result())
    await began.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.to_thread(ended.wait, HANG_SECONDS)


@pytest.mark.parametrize("cut", [False, True])
async def test_a_cycle_leaves_no_flag_in_the_interpreter(cut: bool) -> None:
    """A flag that stays set would slow down every thread, and a profiler would never return."""

    def call(_: Work) -> None:
        while cut:
            pass

    limits = CycleLimits(attempt_seconds=0.01, look_seconds=0.01)
    with suppress(CycleCutError):
        await CycleThread(call, limits=limits).result()

    script_calls = 0

    def count(*_: object) -> None:
        nonlocal script_calls
        script_calls += 1

    sys.setprofile(count)
    try:
        sorted([3, 1, 2])
    finally:
        sys.setprofile(None)
    assert script_calls
