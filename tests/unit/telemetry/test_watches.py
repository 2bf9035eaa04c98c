"""Objects that cannot be read are logged, and a tenant does not decide how much is logged."""

from __future__ import annotations

import json

import pytest

from drumline.kube.informer import Quarantined
from drumline.kube.kinds import RAY_CLUSTERS
from drumline.kube.store import Store
from drumline.kube.suspendable import decoder_for
from drumline.kube.views import Key
from drumline.kube.watch_decoder import MAX_REASON_CHARS, WatchDecoder
from drumline.kube.workload_views import WorkloadView
from drumline.telemetry import watches
from drumline.telemetry.watches import LOG_SECONDS, MOST_LOGGED, LeftOutLog
from tests.unit.controller.workload_bodies import QUEUE


def test_an_object_that_is_written_again_and_again_is_logged_at_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, lines = [0.0], list[str]()

    class Recorder:
        def warning(self, event: str, *, key: str, **_: str) -> None:
            assert event == "object_left_out"
            lines.append(key)

    monkeypatch.setattr(watches, "log", Recorder())
    note = LeftOutLog(clock=lambda: now[0])

    def names(keys: list[str]) -> list[str]:
        lines.clear()
        for key in keys:
            note(Quarantined(resource=RAY_CLUSTERS, key=Key("team", key), reason="why"))
        return lines.copy()

    assert names(["a"] * 100 + ["b"]) == ["team/a", "team/b"]
    now[0] = LOG_SECONDS
    assert names(["a", "a"]) == ["team/a"]
    many = [f"x{number}" for number in range(MOST_LOGGED)]
    assert len(names(many)) == MOST_LOGGED
    assert names(["a"]) == ["team/a"]


def test_the_reason_does_not_quote_a_whole_field() -> None:
    seen: list[Quarantined] = []
    decoder = WatchDecoder[WorkloadView](
        resource=RAY_CLUSTERS,
        store=Store(emit=lambda _: None),
        decode=decoder_for(RAY_CLUSTERS),
        on_quarantine=seen.append,
    )
    metadata = {"name": "r", "namespace": "team", "uid": "r", "labels": QUEUE}
    group = {"groupName": "w", "replicas": "9" * 200_000, "template": {"spec": {"containers": []}}}
    body = {"metadata": metadata, "spec": {"suspend": True, "workerGroupSpecs": [group]}}
    decoder.line(json.dumps({"type": "ADDED", "object": body}).encode())
    (document,) = seen
    assert document.key == Key("team", "r")
    assert len(document.reason) <= MAX_REASON_CHARS
