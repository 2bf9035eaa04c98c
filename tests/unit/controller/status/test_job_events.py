"""Which events a job has."""

from __future__ import annotations

import asyncio

import pytest

from drumline.controller.status.job_events import JobEvents
from drumline.kube.client import KubeClient
from drumline.kube.events import EventRecorder
from tests.builders import a_job
from tests.unit.controller.app.fake_api import FakeApi


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
