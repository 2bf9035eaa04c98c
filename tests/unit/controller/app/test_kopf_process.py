"""Kinds that Kopf watches, and events that reach its handlers."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import kopf
import pytest

from drumline.app.kopf_process import SignalledLoop, is_new_spec, registry_of, settings_of
from drumline.kube.credentials import Credentials, Token
from drumline.kube.kinds import Resource
from drumline_api.base import LABEL_INSTALLATION

HERE = Credentials(server="http://127.0.0.1:1", token=Token(lambda: None))


async def no_report(resource: Resource, name: str, version: str) -> None:
    del resource, name, version


def test_kopf_watches_the_platform_s_kinds_and_no_job_of_a_tenant() -> None:
    registry = registry_of(credentials=HERE, report=no_report)
    watched = {handler.selector.any_name for handler in registry._watching.get_all_handlers()}
    assert watched == {"gpupools", "trainingqueues"}


@pytest.mark.parametrize(("installation", "label"), [("research", "research"), ("", kopf.ABSENT)])
def test_kopf_hears_of_this_installations_objects_alone(installation: str, label: Any) -> None:
    registry = registry_of(credentials=HERE, report=no_report, installation=installation)
    for handler in registry._watching.get_all_handlers():
        assert handler.labels == {LABEL_INSTALLATION: label}


def test_kopf_writes_nothing() -> None:
    registry, settings = registry_of(credentials=HERE, report=no_report), settings_of()
    assert not registry._changing.get_all_handlers()
    assert not registry._spawning.get_all_handlers()
    assert (settings.posting.enabled, settings.peering.standalone) == (False, True)


def test_more_objects_come_and_go_than_platforms_have() -> None:
    queueing = settings_of().queueing
    assert queueing.worker_limit is not None
    assert queueing.worker_limit / queueing.idle_timeout > 100  # objects a second


@pytest.mark.parametrize(
    ("change", "observed", "expected"),
    [("ADDED", None, True), ("MODIFIED", 1, True), ("MODIFIED", 2, False), ("DELETED", 1, False)],
)
def test_only_a_new_spec_is_news(change: Any, observed: int | None, expected: bool) -> None:
    status = {} if observed is None else {"observedGeneration": observed}
    raw: Any = {"metadata": {"generation": 2}, "status": status}
    event: Any = {"type": change, "object": raw}
    assert is_new_spec(body=kopf.Body(raw), event=event) is expected


def test_a_signal_that_a_failing_kopf_forgets_reaches_the_operator() -> None:
    heard: list[int] = []
    taken = asyncio.Event()

    async def fail() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, taken.set)
        os.kill(os.getpid(), signal.SIGUSR2)
        await taken.wait()
        raise LookupError

    with (
        pytest.raises(LookupError),
        asyncio.Runner(loop_factory=lambda: SignalledLoop(heard.append)) as runner,
    ):
        runner.run(fail())
    assert heard == [signal.SIGUSR2]
