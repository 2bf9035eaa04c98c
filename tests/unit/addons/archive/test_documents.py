"""What is kept of a job, and what is not."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from drumline.kube.codec import Undecodable
from drumline_addons.archive.documents import (
    MOST_PACKED_BYTES,
    archivable_job,
    archived_job,
    document,
    with_deletion,
)
from tests.unit.addons.archive.jobs import job, raw_job

EVENT = {"kind": "Event", "reason": "Started"}


def test_values_of_variables_and_annotations_of_others_are_not_kept() -> None:
    body = document(job().unpacked(), events=[], archived_at=0.0, deleted_at=None)
    assert b"hunter2" not in body
    kept = json.loads(body)["items"][0]
    assert kept["spec"]["template"]["env"] == [
        {"name": "TOKEN", "value": "(not archived)"},
        {"name": "OF", "valueFrom": {}},
    ]
    assert kept["metadata"]["annotations"] == {"drumline.dev/note": "kept"}
    assert kept["metadata"]["labels"] == {"team": "nlp"}
    assert "managedFields" not in kept["metadata"]


def test_a_document_is_what_kubectl_prints() -> None:
    whole = json.loads(document(job().unpacked(), events=[EVENT], archived_at=0.0, deleted_at=None))
    assert (whole["kind"], [item["kind"] for item in whole["items"]]) == (
        "List",
        ["TrainingJob", "Event"],
    )
    assert whole["archive"] == {"archivedAt": "1970-01-01T00:00:00Z"}


def test_news_is_what_a_reader_would_miss() -> None:
    assert job(step=1).news == job(step=2).news
    assert job(step=1).news != job(step=1, restarts=1).news
    assert job().news != job(lastIncident={"generation": 3, "attempt": 0}).news


def test_a_deletion_is_added_to_a_document() -> None:
    body = document(job().unpacked(), events=[EVENT], archived_at=5.0, deleted_at=None)
    metadata, gone = with_deletion(body, deleted_at=60.0)
    assert metadata["name"] == "llama"
    assert archived_job(gone).archive.deleted_at == "1970-01-01T00:01:00Z"
    assert json.loads(gone)["items"] == json.loads(body)["items"]


def test_a_spec_that_is_filled_up_costs_little_and_keeps_what_rows_need() -> None:
    raw = raw_job(phase="Running")
    filling = random.Random(0).randbytes(400_000).hex()
    raw["spec"]["trainer"] = {"overrides": {"filling": filling}}
    view = archivable_job(json.dumps(raw).encode())
    assert len(view.packed) <= MOST_PACKED_BYTES
    kept = view.unpacked()
    assert kept["spec"] == {
        "queue": "nlp",
        "user": "ada",
        "nodes": 2,
        "gpusPerNode": 8,
        "gpuPool": "h100",
    }
    assert kept["status"] == {"phase": "Running"}


@pytest.mark.parametrize(
    "metadata",
    [
        {"name": "../../etc/passwd"},
        {"name": "a/b"},
        {"namespace": ".."},
        {"uid": "../x"},
        {"uid": ""},
        {"name": 7},
    ],
)
def test_a_name_that_would_leave_its_folder_is_refused(metadata: dict[str, Any]) -> None:
    raw = raw_job()
    raw["metadata"] |= metadata
    with pytest.raises(Undecodable, match=f"metadata.{next(iter(metadata))}"):
        archivable_job(json.dumps(raw).encode())


@pytest.mark.parametrize("raw", [b"{", b"[]", b'{"metadata": 3}', b'{"a":' * 5000 + b"1"])
def test_what_is_no_job_is_undecodable(raw: bytes) -> None:
    with pytest.raises(Undecodable):
        archivable_job(raw)


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"archive": {"archivedAt": ""}, "items": []}'])
def test_what_is_no_document_is_undecodable(raw: bytes) -> None:
    with pytest.raises(Undecodable):
        archived_job(raw)
