"""The objects that a job's pods need, where a quota has exactly no room left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from unittest.mock import AsyncMock

import pytest

from drumline.controller.reconciler.child_objects import ChildObjects
from drumline.kube.client import KubeClient
from drumline.kube.errors import Forbidden
from drumline.lifecycle.manifests.children import token_secret_name
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import PodFacts
from tests.builders import a_job, a_pod, admitted, with_status
from tests.unit.controller.app.fake_api import FakeApi

JOB = admitted(a_job(template={"image": "any:1", "command": ["true"], "launch": "PerGpu"}))
FULL = (403, "Forbidden", "exceeded quota: few, requested: count/secrets=1")


def later(**status: object) -> Job:
    return with_status(JOB, JOB.status.model_copy(update={"generation": 2, **status}))


@pytest.fixture
async def api() -> AsyncIterator[tuple[FakeApi, KubeClient]]:
    api = FakeApi()
    async with api.serving() as credentials, KubeClient(credentials) as client:
        yield api, client


def children_of(client: KubeClient, *pods: PodFacts) -> ChildObjects:
    return ChildObjects(
        client,
        shared=AsyncMock(),
        protection=AsyncMock(),
        pods_of=lambda _: pods,
        token=lambda _: b"token",
    )


@pytest.mark.parametrize(
    ("job", "pods"), [(later(), ()), (JOB, (a_pod(JOB, 0),))], ids=["later start", "its pods exist"]
)
async def test_a_full_quota_of_secrets_stops_no_restart(
    api: tuple[FakeApi, KubeClient], job: Job, pods: tuple[PodFacts, ...]
) -> None:
    """The API server refuses the create before it looks for the name."""
    server, client = api
    await children_of(client).create(JOB, shared_budget=False)
    assert [each["metadata"]["name"] for each in server.objects("secrets")] == [
        token_secret_name(JOB)
    ]
    server.refusals = {"secrets": FULL}
    await children_of(client, *pods).create(job, shared_budget=False)


@pytest.mark.parametrize(
    ("job", "refusal"),
    [
        (JOB, FULL),
        (later(incident=f'secrets "{token_secret_name(JOB)}" is forbidden: exceeded quota'), FULL),
        (later(), (403, "Forbidden", "denied by a policy")),
    ],
    ids=["first start", "never created", "policy"],
)
async def test_a_secret_that_is_needed_and_refused_fails_the_start(
    api: tuple[FakeApi, KubeClient], job: Job, refusal: tuple[int, str, str]
) -> None:
    server, client = api
    server.refusals = {"secrets": refusal}
    with pytest.raises(Forbidden):
        await children_of(client).create(job, shared_budget=False)
