"""What is written so that a drain may evict exactly some pods."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from drumline.controller.reconciler.job_memory import UNSEEN_SECONDS, JobMemory
from drumline.controller.reconciler.protection import Protection
from drumline.kube.client import KubeClient
from drumline.lifecycle.model.observed import PodFacts
from drumline.lifecycle.plan.actions import LabelPods
from tests.builders import a_job, a_pod, admitted
from tests.unit.controller.app.fake_api import FakeApi

JOB = admitted(a_job())
ACTION = LabelPods(protect=(a_pod(JOB, 0),), release=(a_pod(JOB, 1),))
OLD, NEW = a_pod(JOB, 0), a_pod(JOB, 1, protected=True)


@dataclass(kw_only=True)
class Desk:
    """A protection that writes to a fake API server."""

    api: FakeApi
    protection: Protection
    memory: JobMemory = field(default_factory=JobMemory)
    pods: list[PodFacts] = field(default_factory=list[PodFacts])


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    api, pods = FakeApi(), list[PodFacts]()
    async with api.serving() as credentials, KubeClient(credentials) as client:
        yield Desk(api=api, protection=Protection(client, pods_of=lambda _: pods), pods=pods)


async def test_labels_that_the_cache_does_not_show_yet_are_written_once(desk: Desk) -> None:
    desk.pods += (*ACTION.protect, *ACTION.release)
    for now in (100.0, 101.0):
        await desk.protection.label(JOB, ACTION, desk.memory, now=now)
    assert desk.api.requests == [
        "PATCH /api/v1/namespaces/team/pods/llama-0-g1",
        "PATCH /api/v1/namespaces/team/pods/llama-1-g1",
    ]
    await desk.protection.label(JOB, ACTION, desk.memory, now=100.0 + UNSEEN_SECONDS)
    assert len(desk.api.requests) == 4


@pytest.mark.parametrize(
    ("nodes", "pods", "shared"),
    [
        (2, [], True),
        (2, [NEW], True),
        (2, [OLD, NEW], False),  # a budget of the job's own selects the next pods too
        (9, [], False),
    ],
)
async def test_new_pods_are_in_one_budget(
    desk: Desk, nodes: int, pods: list[PodFacts], shared: bool
) -> None:
    desk.pods += pods
    assert desk.protection.is_shared(a_job(nodes=nodes)) == shared
