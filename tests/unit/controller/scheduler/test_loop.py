"""When the scheduler looks again without an event."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Callable
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from drumline.controller.queues.usage_history import QueueUsageHistory
from drumline.controller.scheduler.captures import CycleCaptures
from drumline.controller.scheduler.cycle_thread import CycleLimits
from drumline.controller.scheduler.fault_memory import FIRST_SECONDS, FaultMemory
from drumline.controller.scheduler.forecasts import Forecasts
from drumline.controller.scheduler.garbage import YOUNG_OBJECTS_LEFT
from drumline.controller.scheduler.guard import Guard
from drumline.controller.scheduler.loop import (
    LOOK_FACTOR,
    LOOK_SECONDS,
    RETRY_SECONDS,
    SchedulerLoop,
    next_look,
)
from drumline.controller.scheduler.waiting_messages import WaitingMessages
from drumline.controller.state.cluster import ClusterCache
from drumline.lifecycle.model.job import Job
from drumline.telemetry.metrics import Metrics
from drumline_scheduler.admission import Admission
from drumline_scheduler.decisions import BlockReason, Decisions
from drumline_scheduler.guarded_nodes import GIVE_UP_SECONDS
from drumline_scheduler.model import Gang, Policy, Snapshot
from drumline_scheduler.queueing.deferral import TRY_BUDGET
from drumline_scheduler.work import TimeLimit
from tests.unit.controller.scheduler.full_node import NOW, a_full_node
from tests.unit.controller.views import job_view, node_view

MakeLoop = Callable[..., SchedulerLoop]
TEMPLATE = {"image": "any:1", "command": ["true"]}
RETRY_AT_ONCE = next_look(settled=True, retry_in=0.0, waits=True, took=0.0)


@pytest.mark.parametrize(
    ("settled", "retry_in", "waits", "took", "expected"),
    [
        (True, None, False, 0.1, None),
        (True, None, True, 0.1, LOOK_SECONDS),
        (True, None, True, 3.0, 3.0 * LOOK_FACTOR),
        (True, 5.0, True, 3.0, 5.0),
        (True, -1.0, False, 0.1, 0.05),
        (False, 5.0, True, 0.1, RETRY_SECONDS),
    ],
)
def test_the_next_look_is_due(
    settled: bool, retry_in: float | None, waits: bool, took: float, expected: float | None
) -> None:
    assert next_look(settled=settled, retry_in=retry_in, waits=waits, took=took) == expected


def nobody_offers_nodes() -> Mock:
    def offered(snapshot: Snapshot, *, now: float) -> Snapshot:
        del now
        return snapshot

    return Mock(offered=offered, said=Mock(return_value=""), take=AsyncMock())


def no_pool_is_guarded() -> Guard:
    return Guard(
        client=Mock(), state=Mock(), pools=frozenset(), clock=lambda: NOW, wake_scheduler=Mock()
    )


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def make_loop(tmp_path: Path, metrics: Metrics) -> MakeLoop:
    def made(
        committer: AsyncMock,
        messages: Mock,
        wake: asyncio.Event,
        *,
        state: ClusterCache | None = None,
        node_requests: Mock | None = None,
        guard: Guard | None = None,
        clock: Callable[[], float] = lambda: NOW,
        admission: Mock | None = None,
        limits: CycleLimits | None = None,
    ) -> SchedulerLoop:
        return SchedulerLoop(
            state=state or a_full_node(),
            committer=committer,
            messages=messages,
            metrics=metrics,
            clock=clock,
            wake=wake,
            policy=Policy(),
            usage=QueueUsageHistory(half_life=3600.0),
            forecasts=Mock(),
            captures=CycleCaptures(file=tmp_path / "capture", wake=lambda: None),
            node_requests=node_requests or nobody_offers_nodes(),
            guard=guard or no_pool_is_guarded(),
            faults=FaultMemory(metrics=metrics, job_events=Mock()),
            enqueue=lambda key: None,  # noqa: ARG005 - nothing is left out
            admission=admission,
            limits=limits,
        )

    return made


async def test_the_first_cycle_of_a_term_explains_nothing_and_the_second_follows_at_once(
    make_loop: MakeLoop,
) -> None:
    messages = Mock()
    committer = AsyncMock(**{"withdraw.return_value": True, "carry_out.return_value": True})
    loop = make_loop(committer, messages, asyncio.Event())
    assert await loop.cycle() == 0.0
    messages.set.assert_not_called()
    messages.keep_only.assert_not_called()
    assert await loop.cycle() == LOOK_SECONDS
    assert messages.set.call_args.args[0].name == "waits"
    assert committer.carry_out.call_count == 2


async def test_nodes_are_asked_for_on_while_a_start_waits_for_its_node_to_be_guarded(
    make_loop: MakeLoop,
) -> None:
    committer = AsyncMock(**{"withdraw.return_value": True, "carry_out.return_value": True})
    requests, state, clock = nobody_offers_nodes(), a_full_node(), Mock(return_value=0.0)
    state.nodes.on_node(None, node_view("node-1"))
    guard = Guard(
        client=Mock(),
        state=state,
        pools=frozenset({"h100"}),
        clock=clock,
        wake_scheduler=Mock(),
    )
    loop = make_loop(
        committer, Mock(), asyncio.Event(), state=state, node_requests=requests, guard=guard
    )
    await loop.cycle()
    assert requests.take.call_args.args[0].placed == ()
    assert requests.take.call_args.kwargs["held_back"] == {"2"}
    clock.return_value = GIVE_UP_SECONDS
    await loop.cycle()
    assert [placed.uid for placed in requests.take.call_args.args[0].placed] == ["2"]
    assert requests.take.call_args.kwargs["held_back"] == set()


async def test_waiting_jobs_are_counted_by_queue_and_reason(
    make_loop: MakeLoop, metrics: Metrics
) -> None:
    committer = AsyncMock(**{"withdraw.return_value": True, "carry_out.return_value": True})
    loop = make_loop(committer, Mock(), asyncio.Event())
    await loop.cycle()
    await loop.cycle()
    labels = {"queue": "research", "reason": "InsufficientGpus"}
    assert metrics.registry.get_sample_value("drumline_pending_jobs", labels) == 1


async def test_an_exception_on_the_message_of_one_job_leaves_those_of_others(
    make_loop: MakeLoop, metrics: Metrics
) -> None:
    state, messages, names = a_full_node(), Mock(), list[str]()
    state.on_job(None, job_view("bad", uid="b", template=TEMPLATE))
    state.on_job(None, job_view("later", uid="l", template=TEMPLATE))

    def told_of(job: Job, **_: object) -> None:
        if job.name == "bad":
            raise IndexError("planted")
        names.append(job.name)

    messages.set.side_effect = told_of
    committer = AsyncMock(**{"withdraw.return_value": True, "carry_out.return_value": True})
    loop = make_loop(committer, messages, asyncio.Event(), state=state)
    await loop.cycle()
    await loop.cycle()
    assert sorted(names) == ["later", "waits"]
    messages.keep_only.assert_called_once()
    labels = {"stage": "messages"}
    assert metrics.registry.get_sample_value("drumline_scheduling_faults_total", labels) == 1


async def test_kinds_of_jobs_that_a_cycle_did_not_try_have_their_turn_without_an_event(
    make_loop: MakeLoop,
) -> None:
    state, messages = a_full_node(), Mock()
    for index in range(2 * TRY_BUDGET):
        resources = {"cpu": f"{2000 + index}m"}
        view = job_view(f"j{index}", uid=f"u{index}", resources=resources, template=TEMPLATE)
        state.on_job(None, view)
    committer = AsyncMock(**{"withdraw.return_value": True, "carry_out.return_value": True})
    loop = make_loop(committer, messages, asyncio.Event(), state=state)
    assert await loop.cycle() == 0.0  # it explains nothing
    assert await loop.cycle() == RETRY_AT_ONCE
    loop._was_woken = False
    reasons: dict[str, str] = {}
    delay: float | None = 0.0
    for _ in range(2 * TRY_BUDGET):
        if delay is not None and delay >= LOOK_SECONDS:
            break
        delay = await loop.cycle()
        for call in messages.set.call_args_list:
            reasons[call.args[0].name] = call.kwargs["reason"]
    assert delay is not None
    assert delay >= LOOK_SECONDS
    assert len(reasons) == 2 * TRY_BUDGET + 1


async def test_jobs_have_their_turn_although_each_cycle_runs_out_of_time(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()

    def over(_nodes: int, **_clock: object) -> TimeLimit:
        return TimeLimit(clock=lambda: float(next(clock)), seconds=0.0)

    monkeypatch.setattr(TimeLimit, "for_nodes", over)
    state, messages = a_full_node(), Mock()
    for index in range(TRY_BUDGET):
        resources = {"cpu": f"{2000 + index}m"}
        view = job_view(f"j{index}", uid=f"u{index}", resources=resources, template=TEMPLATE)
        state.on_job(None, view)
    committer = AsyncMock(**{"withdraw.return_value": True, "carry_out.return_value": True})
    loop = make_loop(committer, messages, asyncio.Event(), state=state)
    await loop.cycle()
    await loop.cycle()
    loop._was_woken = False
    delay, cycles = RETRY_AT_ONCE, 0
    while delay == RETRY_AT_ONCE:
        delay, cycles = await loop.cycle(), cycles + 1
        assert cycles < 2 * TRY_BUDGET
    assert cycles > 2, "a cycle tries few of them"
    tried = {
        call.args[0].name
        for call in messages.set.call_args_list
        if call.kwargs["reason"] != BlockReason.NOT_TRIED
    }
    assert {f"j{index}" for index in range(TRY_BUDGET)} <= tried


async def test_cycles_do_not_follow_at_once_while_jobs_only_wait_for_nodes_of_others(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decided(*_given: object, **_named: object) -> Decisions:
        return Decisions(deferred=("u1",))

    monkeypatch.setattr("drumline.controller.scheduler.loop.decide", decided)
    state = a_full_node()
    state.on_job(None, job_view("j1", uid="u1", template=TEMPLATE))
    committer = AsyncMock(**{"withdraw.return_value": True, "carry_out.return_value": True})
    loop = make_loop(committer, Mock(), asyncio.Event(), state=state)
    await loop.cycle()
    assert await loop.cycle() == RETRY_AT_ONCE, "it was woken, so there may be more"
    loop._was_woken = False
    delay = await loop.cycle()
    assert delay is not None
    assert delay >= LOOK_SECONDS


async def test_a_job_keeps_the_reason_of_its_last_turn(make_loop: MakeLoop) -> None:
    state, messages = a_full_node(), Mock()
    for index in range(2 * TRY_BUDGET):
        resources = {"cpu": f"{2000 + index}m"}
        status = {"phase": "Pending", "reason": "InsufficientGpus", "message": "before"}
        state.on_job(
            None,
            job_view(
                f"j{index}",
                uid=f"u{index}",
                resources=resources,
                template=TEMPLATE,
                status=status if index % 2 else {},
            ),
        )
    committer = AsyncMock(**{"withdraw.return_value": True, "carry_out.return_value": True})
    loop = make_loop(committer, messages, asyncio.Event(), state=state)
    for _ in range(2):
        await loop.cycle()
    set_again = {call.args[0].name for call in messages.set.call_args_list}
    kept = {f"j{index}" for index in range(2 * TRY_BUDGET)} - set_again
    assert kept
    assert all(int(name[1:]) % 2 for name in kept)
    waiting = messages.keep_only.call_args.args[0]
    assert {f"u{index}" for index in range(2 * TRY_BUDGET)} <= waiting


async def test_queues_that_do_not_exist_are_counted_as_one(
    make_loop: MakeLoop, metrics: Metrics
) -> None:
    """A tenant may write any number of names, and each series takes memory."""
    state = a_full_node()
    for index in range(5):
        state.on_job(None, job_view(f"lost-{index}", uid=f"u{index}", queue=f"none-{index}"))
    committer = AsyncMock(**{"withdraw.return_value": True, "carry_out.return_value": True})
    await make_loop(committer, Mock(), asyncio.Event(), state=state).cycle()
    labels = {"queue": "", "reason": "QueueNotFound"}
    assert metrics.registry.get_sample_value("drumline_pending_jobs", labels) == 5


async def test_jobs_of_a_missing_priority_class_are_counted(
    make_loop: MakeLoop, metrics: Metrics
) -> None:
    """No cycle sees them, and their alert needs the number."""
    state = a_full_node()
    state.on_job(None, job_view("typo", uid="u9", priorityClassName="hihg"))
    committer = AsyncMock(**{"withdraw.return_value": True, "carry_out.return_value": True})
    await make_loop(committer, Mock(), asyncio.Event(), state=state).cycle()
    labels = {"queue": "research", "reason": "PriorityClassNotFound"}
    assert metrics.registry.get_sample_value("drumline_pending_jobs", labels) == 1


async def test_the_message_of_a_new_job_has_its_expected_start(tmp_path: Path) -> None:
    """In the cycle that rejects it, so in one write."""
    state, metrics = a_full_node(), Metrics()
    usage = QueueUsageHistory(half_life=3600.0)
    forecasts = Forecasts(
        state=state,
        usage=usage,
        policy=Policy(),
        clock=lambda: NOW,
        wake=lambda: None,
        caught_up=AsyncMock(),
        metrics=metrics.forecasts,
    )
    messages = WaitingMessages(
        state=state, writer=Mock(), job_events=Mock(), expected=forecasts.of, clock=lambda: NOW
    )
    loop = SchedulerLoop(
        state=state,
        committer=AsyncMock(**{"withdraw.return_value": True, "carry_out.return_value": True}),
        messages=messages,
        metrics=metrics,
        clock=lambda: NOW,
        wake=asyncio.Event(),
        policy=Policy(),
        usage=usage,
        forecasts=forecasts,
        captures=CycleCaptures(file=tmp_path / "capture", wake=lambda: None),
        node_requests=nobody_offers_nodes(),
        guard=no_pool_is_guarded(),
        faults=FaultMemory(metrics=metrics, job_events=Mock()),
        enqueue=lambda key: None,  # noqa: ARG005 - nothing is left out
    )
    for _ in range(2):  # the first explains nothing
        await loop.cycle()
    (text,) = messages.take()
    assert text.start is not None
    assert text.start_by is not None
    assert NOW < text.start < text.start_by


async def test_the_first_cycle_is_over_though_it_failed(make_loop: MakeLoop) -> None:
    committer = AsyncMock(**{"withdraw.side_effect": [ValueError("broken"), True]})
    wake = asyncio.Event()
    loop = make_loop(committer, Mock(), wake)
    running = asyncio.create_task(loop.run())
    await asyncio.sleep(0)
    assert not loop.first_cycle_over.is_set()
    wake.set()
    await loop.first_cycle_over.wait()
    running.cancel()


async def test_new_objects_are_looked_through_between_cycles_and_not_in_one(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    threshold, objects = gc.get_threshold(), list[object]()

    async def cycle(_loop: SchedulerLoop) -> None:
        objects.extend([] for _ in range(2 * YOUNG_OBJECTS_LEFT))
        assert gc.get_count()[0] > YOUNG_OBJECTS_LEFT

    monkeypatch.setattr(SchedulerLoop, "cycle", cycle)
    wake = asyncio.Event()
    gc.set_threshold(10 * YOUNG_OBJECTS_LEFT)
    loop = make_loop(AsyncMock(), Mock(), wake)
    running = asyncio.create_task(loop.run())
    try:
        wake.set()
        await loop.first_cycle_over.wait()
        assert gc.get_count()[0] < YOUNG_OBJECTS_LEFT
    finally:
        gc.set_threshold(*threshold)
        running.cancel()


async def test_an_exception_in_a_step_that_only_informs_holds_up_no_start(
    make_loop: MakeLoop, metrics: Metrics
) -> None:
    committer = AsyncMock(**{"withdraw.return_value": True, "carry_out.return_value": True})
    messages = Mock(**{"set.side_effect": ValueError("planted")})
    requests = nobody_offers_nodes()
    requests.take.side_effect = KeyError("planted")
    loop = make_loop(committer, messages, asyncio.Event(), node_requests=requests)
    await loop.cycle()
    await loop.cycle()
    assert committer.carry_out.call_count == 2
    name = "drumline_scheduling_faults_total"
    assert metrics.registry.get_sample_value(name, {"stage": "messages"}) == 1
    assert metrics.registry.get_sample_value(name, {"stage": "request nodes"}) == 2


async def test_a_gang_that_raises_is_set_aside_and_looked_at_again_later(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def raises(_: Admission, gang: Gang) -> None:
        tried.append(gang.uid)
        raise IndexError("planted")

    monkeypatch.setattr(Admission, "admit", raises)
    messages = Mock()
    committer = AsyncMock(**{"withdraw.return_value": True, "carry_out.return_value": True})
    loop = make_loop(committer, messages, asyncio.Event())
    await loop.cycle()
    assert await loop.cycle() == FIRST_SECONDS
    assert tried == ["2", "2"], "once more without the cache, then not at all"
    assert messages.set.call_args.kwargs["reason"] == "SchedulerError"


async def test_a_gang_that_no_longer_raises_asks_for_no_further_cycle(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit, clock = Admission.admit, Mock(return_value=NOW)

    def raises(admission: Admission, gang: Gang) -> object:
        if clock() == NOW:
            raise IndexError("planted")
        return admit(admission, gang)

    monkeypatch.setattr(Admission, "admit", raises)
    committer = AsyncMock(**{"withdraw.return_value": True, "carry_out.return_value": True})
    loop = make_loop(committer, Mock(), asyncio.Event(), clock=clock)
    await loop.cycle()
    await loop.cycle()
    clock.return_value = NOW + FIRST_SECONDS
    assert await loop.cycle() == LOOK_SECONDS


async def test_workloads_that_are_no_jobs_are_not_placed_as_jobs_where_handing_them_on_fails(
    make_loop: MakeLoop,
) -> None:
    committer = AsyncMock(**{"withdraw.return_value": True, "carry_out.return_value": True})
    admission = Mock(**{"take.side_effect": KeyError("planted")})
    loop = make_loop(committer, Mock(), asyncio.Event(), admission=admission)
    await loop.cycle()
    assert committer.carry_out.call_count == 1


async def test_a_job_with_an_endless_search_is_named_and_set_aside(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch, metrics: Metrics
) -> None:
    admit: Callable[[Admission, Gang], object] = Admission.admit

    def planted(admission: Admission, wanted: Gang) -> object:
        while wanted.key == "team/endless":
            pass
        return admit(admission, wanted)

    monkeypatch.setattr(Admission, "admit", planted)
    state, messages = a_full_node(), Mock()
    state.on_job(None, job_view("endless", uid="3", nodes=1, gpusPerNode=4))
    committer = AsyncMock(**{"withdraw.return_value": True, "carry_out.return_value": True})
    loop = make_loop(
        committer,
        messages,
        asyncio.Event(),
        state=state,
        limits=CycleLimits(gang_seconds=0.3, look_seconds=0.02),
    )
    await loop.cycle()
    await loop.cycle()
    reasons = {call.args[0].name: call.kwargs["reason"] for call in messages.set.call_args_list}
    assert reasons == {"waits": "InsufficientGpus", "endless": "SchedulerError"}
    name = "drumline_scheduling_faults_total"
    assert metrics.registry.get_sample_value(name, {"stage": "admit"}) == 1
