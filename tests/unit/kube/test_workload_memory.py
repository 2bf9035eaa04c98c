"""Foreign workloads: bounded bytes, and a spec is read once for each generation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drumline.kube import workloads
from drumline.kube.codec import Undecodable
from drumline.kube.kinds import Resource
from drumline.kube.suspendable import decoder_for
from drumline.kube.workload_kinds import KINDS
from drumline.kube.workload_memory import MAX_BYTES, WorkloadDecoder
from drumline.kube.workload_views import WorkloadView
from tests.unit.controller.workload_bodies import a_job_set

Json = dict[str, Any]


def raw(body: Json) -> bytes:
    return json.dumps(body).encode()


class Counting:
    """Decodes JobSets and counts them."""

    def __init__(self) -> None:
        self.calls = 0
        self.decode = WorkloadDecoder(self._decode)

    def _decode(self, stored: bytes) -> WorkloadView:
        self.calls += 1
        return workloads.job_set(stored)


def changed(body: Json, **metadata: Any) -> Json:
    return {**body, "metadata": {**body["metadata"], **metadata}}


def a_body() -> Json:
    return changed(a_job_set(), uid="w", generation=3, resourceVersion="7")


def test_a_patched_annotation_reads_no_spec() -> None:
    counting, body = Counting(), a_body()
    first = counting.decode(raw(body))
    for number in range(20):
        patched = changed(
            body,
            resourceVersion=f"1{number}",
            annotations={"drumline.dev/x": str(number), "other": "y"},
            labels={"drumline.dev/queue": "other"},
        )
        view = counting.decode(raw(patched))
        assert view == workloads.job_set(raw(patched))
        assert view.shapes == first.shapes
    assert counting.calls == 1


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"generation": 4}},
        {"metadata": {"uid": "another"}},
        {"metadata": {"generation": 0}},
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {
            "metadata": {
                "ownerReferences": [{"kind": "JobSet", "name": "x", "uid": "u", "controller": True}]
            }
        },
        {"status": {"conditions": [{"type": "Completed", "status": "True"}]}},
    ],
)
def test_whatever_may_change_the_view_is_read_again(change: Json) -> None:
    counting, body = Counting(), a_body()
    counting.decode(raw(body))
    other = {**changed(body, **change.get("metadata", {})), "status": change.get("status", {})}
    assert counting.decode(raw(other)) == workloads.job_set(raw(other))
    assert counting.calls == 2


@pytest.mark.parametrize("resource", list(KINDS), ids=str)
def test_a_workload_with_too_many_bytes_is_not_read(resource: Resource) -> None:
    decode = decoder_for(resource)
    large = changed(a_body(), annotations={"x": "y" * MAX_BYTES})
    with pytest.raises(Undecodable, match=str(MAX_BYTES)):
        decode(raw(large))
