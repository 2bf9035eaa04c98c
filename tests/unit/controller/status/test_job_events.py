"""Which events a job has."""

from __future__ import annotations

import asyncio

import pytest

from drumline.controller.job_events import JobEvents
from drumline.kube.client import KubeClient
from drumline.kube.events import EventRecorder
from drumline.lifecycle import transitions
from drumline_api.conditions import Reason
from tests.builders import T0, a_job, admitted, running, with_status
from tests.unit.controller.app.fake_api import FakeApi


async def test_idle_gpus_are_an_event_for_each_thing_that_is_said_of_them() -> None:
    job = running(admitted(a_job()))
    api = FakeApi()
    async with (
        api.serving() as credentials,
        KubeClient(credentials) as client,
        asyncio.TaskGroup() as group,
    ):
        recorder = EventRecorder(client, instance="operator-0")
        recording = group.create_task(recorder.run())
        events = JobEvents(recorder)
        for reason in (Reason.NO_STEPS, Reason.NO_STEPS, Reason.STAYS_IDLE):
            status = transitions.idle(job, reason=reason, message="no work", now=T0)
            events.became(job, status)
            job = with_status(job, status)
        events.became(job, transitions.works_again(job, now=T0))
        events.became(job, transitions.suspended_for_idleness(job, saved=False, now=T0))
        await recorder.flush()
        recording.cancel()
    said = [(event["reason"], event["action"], event["type"]) for event in api.objects("events")]
    assert said == [(reason, "Watch", "Warning") for reason in ("NoSteps", "StaysIdle", "IdleGpus")]


@pytest.mark.parametrize(
    ("nodes", "notes"), [(("a",), []), (("a", "b"), ["pool h100 in rack-1: a, b"])]
)
async def test_where_a_gang_was_placed_is_an_event_and_of_a_single_pod_none(
    nodes: tuple[str, ...], notes: list[str]
) -> None:
    api = FakeApi()
    async with (
        api.serving() as credentials,
        KubeClient(credentials) as client,
        asyncio.TaskGroup() as group,
    ):
        recorder = EventRecorder(client, instance="operator-0")
        running = group.create_task(recorder.run())
        JobEvents(recorder).placed(a_job(), pool="h100", nodes=nodes, domain="rack-1")
        await recorder.flush()
        running.cancel()
    assert [event["note"] for event in api.objects("events")] == notes
