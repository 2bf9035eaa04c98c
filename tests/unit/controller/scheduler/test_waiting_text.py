"""Waiting jobs cost few writes: figures near the head alone, and seldom for figures alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from drumline.controller.job_events import JobEvents
from drumline.controller.jobs.status_writer import StatusWriter
from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.scheduler.waiting_messages import (
    AT_ONCE,
    FAR_SECONDS,
    PREEMPTED_SECONDS,
    WaitingMessages,
)
from drumline.controller.scheduler.waiting_text import HEAD, NEXT, refresh_seconds, text_of
from drumline.controller.state.cluster import ClusterCache
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials, Token
from drumline.kube.events import EventRecorder
from drumline.lifecycle import transitions
from drumline.lifecycle.model.job import Job
from drumline_scheduler.decisions import Blocked, BlockReason, Remedy, RemedyKind
from drumline_scheduler.forecast.expected_starts import ExpectedStart
from tests.builders import T0, a_job, admitted, running, with_status
from tests.unit.controller.views import job_view

FULL = "needs 8 GPUs in pool h100; 3 of 64 free"


def blocked(reason: BlockReason) -> Blocked:
    return Blocked(key="team/llama", uid="u", reason=reason, message=FULL)


def test_what_the_autoscaler_says_is_for_jobs_that_wait_for_its_nodes() -> None:
    said = "NotTriggerScaleUp: 2 max node group size reached"
    waits = blocked(BlockReason.WAITING_FOR_NODES)
    assert text_of(waits, position=0, autoscaler=said) == f"{FULL}; it says: {said}"
    assert text_of(waits, position=0) == FULL
    other = blocked(BlockReason.INSUFFICIENT_GPUS)
    assert text_of(other, position=0, autoscaler=said) == FULL


def test_figures_are_for_jobs_near_the_head() -> None:
    waits = blocked(BlockReason.INSUFFICIENT_GPUS)
    assert text_of(waits, position=NEXT - 1) == FULL
    far = {text_of(waits, position=position) for position in (NEXT, HEAD, 5000)}
    assert len(far) == 1
    assert FULL not in far


@pytest.mark.parametrize("reason", [BlockReason.QUEUE_NOT_FOUND, BlockReason.EXCEEDS_CLUSTER])
def test_what_no_other_job_cures_is_said_in_full_wherever_it_waits(reason: BlockReason) -> None:
    assert text_of(blocked(reason), position=5000) == FULL


def test_a_remedy_is_said_where_a_job_can_have_it() -> None:
    other = Remedy(kind=RemedyKind.CORRECT_NAME, where="other")
    for reason, text in (
        (BlockReason.QUEUE_NOT_FOUND, f"{FULL}; to start it now: name other instead"),
        (BlockReason.NAMESPACE_NOT_ALLOWED, FULL),
        (BlockReason.PRIORITY_TOO_HIGH, FULL),
    ):
        assert text_of(replace(blocked(reason), remedy=other), position=0) == text


@pytest.mark.parametrize(
    ("after", "position", "seconds"),
    [
        (FULL.replace("3 of", "4 of"), 0, 60),
        (FULL.replace("3 of", "4 of"), NEXT, 600),
        ("needs 8 GPUs in pool h100; team/other holds 8", NEXT, 60),
    ],
)
def test_a_message_that_means_the_same_is_refreshed_seldom(
    after: str, position: int, seconds: float
) -> None:
    assert refresh_seconds(FULL, after, position=position) == seconds


def messages_at(clock: list[float]) -> WaitingMessages:
    none: Any = type("Nothing", (), {"of": lambda *_: None})()
    return WaitingMessages(
        state=none,
        writer=none,
        job_events=none,
        expected=lambda _: None,
        clock=lambda: clock[0],
    )


def test_a_change_of_figures_alone_is_not_due_far_from_the_head() -> None:
    clock = [T0]
    messages = messages_at(clock)
    reason = str(BlockReason.INSUFFICIENT_GPUS)
    job = replace(a_job(), resource_version="2")
    job = with_status(job, transitions.waiting(job, reason=reason, message=FULL, now=T0))
    moved = FULL.replace("3 of", "4 of")

    def due(position: int) -> bool:
        messages.set(job, reason=reason, message=moved, position=position)
        return bool(messages.due)

    assert not due(NEXT)
    clock[0] += 61
    assert not due(NEXT)
    clock[0] += 540
    assert due(NEXT)


def test_a_start_that_moves_is_written_seldom_far_from_the_head() -> None:
    clock, expected = [T0], [T0 + 10_000.0]
    none: Any = None
    messages = WaitingMessages(
        state=none,
        writer=none,
        job_events=none,
        expected=lambda uid: ExpectedStart(key="k", uid=uid, p50_at=expected[0], p90_at=None),
        clock=lambda: clock[0],
    )
    reason = str(BlockReason.INSUFFICIENT_GPUS)
    status = transitions.waiting(a_job(), reason=reason, message=FULL, now=T0)
    status = transitions.with_expected_start(status, start=T0 + 10_000.0, by=None)
    job = with_status(replace(a_job(), resource_version="2"), status)

    def due(position: int, *, at: float, start: float) -> bool:
        clock[0], expected[0] = T0 + at, T0 + start
        messages.set(job, reason=reason, message=FULL, position=position)
        return bool(messages.due)

    assert not due(HEAD, at=0, start=90_000)  # of an unknown age: counts as written now
    assert not due(HEAD, at=FAR_SECONDS - 1, start=90_000)  # too soon
    assert not due(HEAD, at=FAR_SECONDS, start=16_000)  # by less than half of what is left
    assert due(HEAD, at=FAR_SECONDS, start=90_000)
    assert due(0, at=FAR_SECONDS, start=16_000)
    assert not due(0, at=FAR_SECONDS, start=10_000)


def test_a_job_that_was_preempted_says_so_before_it_says_what_it_waits_for() -> None:
    clock = [T0]
    messages, reason = messages_at(clock), str(BlockReason.INSUFFICIENT_GPUS)
    evicted, fresh = preempted(a_job(name="evicted")), replace(a_job(name="fresh"), uid="uid-2")
    for job in (evicted, fresh):
        messages.set(job, reason=reason, message=FULL)
    assert [text.key for text in messages.take()] == ["team/fresh"]
    clock[0] += PREEMPTED_SECONDS - 1
    messages.set(evicted, reason=reason, message=FULL)  # every cycle says it again
    assert messages.take() == []
    clock[0] += 1
    assert [text.key for text in messages.take()] == ["team/evicted"]


def preempted(job: Job) -> Job:
    job = running(admitted(job))
    return with_status(job, transitions.preempted(job, saved=False, now=T0))


async def test_a_text_that_is_refused_waits_without_the_texts_of_others() -> None:
    asked, written = Counter[str](), asyncio.Condition()

    async def patch(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        asked[name] += 1
        async with written:
            written.notify_all()
        if name.startswith("refused"):
            return web.json_response({"code": 422, "message": "a policy"}, status=422)
        return web.json_response({"metadata": {"uid": "u", "resourceVersion": "2"}})

    app = web.Application()
    app.router.add_patch("/{before:.*}/trainingjobs/{name}/status", patch)
    runner = web.AppRunner(app)
    state = ClusterCache(nodes=NodeCache(clock=lambda: T0))
    async with AsyncExitStack() as stack:
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server = f"http://127.0.0.1:{runner.addresses[0][1]}"
        credentials = Credentials(server=server, token=Token(lambda: None))
        client = await stack.enter_async_context(KubeClient(credentials))
        messages = WaitingMessages(
            state=state,
            writer=StatusWriter(
                client=client,
                jobs=state.jobs,
                wake_scheduler=lambda: None,
                clock=lambda: 0.0,
                wall=lambda: T0,
            ),
            job_events=JobEvents(EventRecorder(client, instance="test")),
            expected=lambda _: None,
            clock=lambda: T0,
        )

        def explain(name: str) -> None:
            state.on_job(None, job_view(name, uid=name))
            job = state.jobs.get(f"team/{name}")
            assert job is not None
            messages.set(job, reason=str(BlockReason.INSUFFICIENT_GPUS), message=FULL)

        refused = [f"refused-{number}" for number in range(AT_ONCE)]
        for name in refused:
            explain(name)
        running = asyncio.create_task(messages.run())
        for name in ("fine", "later", "last"):
            explain(name)
            async with written:
                await written.wait_for(lambda name=name: asked[name] == 1)
            for again in refused:  # another cycle says the same
                explain(again)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert asked == Counter([*refused, "fine", "later", "last"])
