"""Few events, each counted on, and never in anyone's way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from drumline.kube import reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.events import WRITE_AT, EventRecorder, Occurrence, Regarding, Severity
from drumline.kube.kinds import EVENTS, TRAINING_JOBS, TRAINING_QUEUES
from drumline.kube.request import Verb

_NOTE = "needs 8 GPUs, 4 are free"


def _waiting(namespace: str) -> Occurrence:
    job = Regarding(resource=TRAINING_JOBS, namespace=namespace, name="llm", uid="job-uid")
    return Occurrence(regarding=job, reason="Waiting", action="Queue", note=_NOTE)


@asynccontextmanager
async def _recording(client: KubeClient) -> AsyncIterator[EventRecorder]:
    recorder = EventRecorder(client, instance="operator-0")
    task = asyncio.create_task(recorder.run())
    try:
        yield recorder
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def _stored(client: KubeClient, namespace: str) -> list[dict[str, Any]]:
    return [json.loads(raw) for raw in await reads.list_all(client, EVENTS, namespace=namespace)]


async def test_an_occurrence_is_an_event(client: KubeClient, namespace: str) -> None:
    async with _recording(client) as recorder:
        recorder.record(_waiting(namespace))
        await recorder.flush()
    (event,) = await _stored(client, namespace)
    assert {name: event[name] for name in ("reason", "action", "note", "type")} == {
        "reason": "Waiting",
        "action": "Queue",
        "note": _NOTE,
        "type": "Normal",
    }
    assert event["regarding"] == {
        "apiVersion": "drumline.dev/v1alpha1",
        "kind": "TrainingJob",
        "namespace": namespace,
        "name": "llm",
        "uid": "job-uid",
    }
    assert "series" not in event


async def test_what_happens_often_is_an_event_of_at_most_four_writes(
    client: KubeClient, namespace: str
) -> None:
    sent: list[tuple[Verb, int]] = []

    def observe(*, verb: Verb, resource: str, code: int, seconds: float) -> None:
        assert (resource, seconds > 0) == ("events", True)
        sent.append((verb, code))

    async with (
        KubeClient(client._credentials, observe=observe) as own,
        _recording(own) as recorder,
    ):
        for _ in range(500):
            recorder.record(_waiting(namespace))
            await recorder.flush()
    (event,) = await _stored(client, namespace)
    assert event["series"]["count"] == max(WRITE_AT) == 100
    assert sent == [(Verb.CREATE, 201)] + [(Verb.PATCH, 200)] * 3


async def test_a_restarted_operator_makes_no_second_event(
    client: KubeClient, namespace: str
) -> None:
    for _ in range(2):
        async with _recording(client) as recorder:
            recorder.record(_waiting(namespace))
            await recorder.flush()
            assert recorder.dropped_total == 0
    assert len(await _stored(client, namespace)) == 1


async def test_an_expired_event_is_created_again(client: KubeClient, namespace: str) -> None:
    async with _recording(client) as recorder:
        recorder.record(_waiting(namespace))
        await recorder.flush()
        (event,) = await _stored(client, namespace)
        name = event["metadata"]["name"]
        await writes.delete(client, EVENTS, namespace=namespace, name=name, uid=None)
        recorder.record(_waiting(namespace))
        await recorder.flush()
    (event,) = await _stored(client, namespace)
    assert event["series"]["count"] == 2


async def test_an_event_that_is_refused_is_dropped_and_the_next_is_written(
    client: KubeClient,
) -> None:
    async with _recording(client) as recorder:
        recorder.record(_waiting("no-such-namespace"))
        other = Occurrence(
            regarding=Regarding(
                resource=TRAINING_QUEUES, namespace="", name="research", uid="queue-uid"
            ),
            reason="OverQuota",
            action="Reject",
            note="é" * 2000,
            severity=Severity.WARNING,
        )
        recorder.record(other)
        await recorder.flush()
        assert recorder.dropped_total == 1
    stored = await _stored(client, "default")
    (event,) = [each for each in stored if each["regarding"].get("uid") == "queue-uid"]
    assert event["type"] == "Warning"
    assert event["note"].endswith("é...")
