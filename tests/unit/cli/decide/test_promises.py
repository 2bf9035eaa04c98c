"""`drumline decide` and pods that hang in Terminating: the same answers as the operator's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from drumline_cli.formatting import moment
from tests.texts import missing
from tests.unit.cli.decide.test_command import (
    a_class,
    a_job,
    a_node,
    a_pool,
    a_queue,
    placed_on,
    verdicts,
    written,
)

Json = dict[str, Any]
DELETED = "2026-11-28T10:00:00Z"
ENDED = moment(DELETED)
HIGH = a_job("high", priorityClassName="high")


def a_stuck_pod(*, job: str = "") -> Json:
    """A pod with 8 GPUs on n1, of a stranger or of a job of ours, which a finalizer holds."""
    labels = {"job": job, "job-uid": f"team/{job}", "index": "0", "generation": "1"}
    metadata: Json = {
        "name": f"{job}-0-g1" if job else "old",
        "namespace": "team",
        "deletionTimestamp": DELETED,
        "finalizers": ["example.com/keeps"],
    }
    if job:
        metadata["labels"] = {f"drumline.dev/{key}": value for key, value in labels.items()}
        metadata["ownerReferences"] = [{"uid": f"team/{job}", "controller": True}]
    amounts = {"requests": {"nvidia.com/gpu": "8"}}
    spec = {"nodeName": "n1", "containers": [{"name": "main", "resources": amounts}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return {**pod, "status": {"phase": "Running"}}


def decided(
    folder: Path, capsys: pytest.CaptureFixture[str], *objects: Json, after: float, values: str = ""
) -> dict[str, Json]:
    """The verdicts so many seconds after the end of the pod's grace period."""
    assert ENDED is not None
    file = written(folder, a_class("high", 5), *objects)
    os.utime(file, (ENDED + after, ENDED + after))
    if not values:
        return verdicts(capsys, "-f", file, "--no-forecast")
    (folder / "values.yaml").write_text(values)
    return verdicts(capsys, "-f", file, "--no-forecast", "--policy", str(folder / "values.yaml"))


@pytest.mark.parametrize("job", ["", "old"])
@pytest.mark.parametrize(
    "case",
    [
        (119, "", False),
        (120, "", True),
        (7200, "", True),
        (7200, "scheduling: {overdueSeconds: 7201}", False),
    ],
)
def test_a_pod_that_hangs_spares_a_victim_for_a_while_only(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    job: str,
    case: tuple[float, str, bool],
) -> None:
    after, values, evicts = case
    nodes = (a_node("n1"), a_node("n2"), a_pool(), a_queue(32))
    old = [a_job(job, suspend=True)] if job else []
    low = a_job("low", status=placed_on("n2"))
    objects = (*nodes, *old, a_stuck_pod(job=job), low, HIGH)
    said = decided(tmp_path, capsys, *objects, after=after, values=values)
    assert ("team/low" in said) is evicts


def test_who_hangs_is_named_with_node_and_finalizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = (a_node("n1"), a_pool(), a_queue(16), a_stuck_pod())
    said = decided(tmp_path, capsys, *site, HIGH, after=7200)["team/high"]
    assert not missing(said["message"], "team/old", "n1", "example.com/keeps")


def test_who_holds_the_quota_and_hangs_is_named_likewise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = (a_node("n1"), a_node("n2"), a_pool(), a_queue(8))
    old = (a_job("old", suspend=True), a_stuck_pod(job="old"))
    said = decided(tmp_path, capsys, *site, *old, HIGH, after=7200)["team/high"]
    assert said["reason"] == "QuotaExhausted"
    assert not missing(said["message"], "team/old-0-g1", "n1", "example.com/keeps")
