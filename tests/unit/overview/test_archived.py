"""Jobs of the archive: one that was deleted while it ran gave its GPUs back at that moment."""

from __future__ import annotations

from drumline.overview.archived import ended_job
from drumline.overview.held import held_gpu_seconds
from drumline.overview.objects import JobObject, JobSpec, seconds
from drumline_api.objects.base import ObjectMetadata
from drumline_api.objects.custom import (
    StoredAssignment,
    StoredCondition,
    StoredGpuSeconds,
    StoredTrainingJobStatus,
)

DELETED_AT = "2026-11-23T12:00:10Z"
RUNS = JobObject(
    metadata=ObjectMetadata(name="llama", namespace="research", uid="u-1"),
    spec=JobSpec(nodes=2, gpus_per_node=8),
    status=StoredTrainingJobStatus(
        phase="Running",
        reason="Training",
        assignment=StoredAssignment(gpu_pool="h100", nodes=["a", "b"]),
        gpu_seconds=StoredGpuSeconds(until="2026-11-23T12:00:00Z", productive=100),
        conditions=[StoredCondition(type="Running", status="True")],
    ),
)


def test_a_deleted_job_holds_no_gpu_after_its_deletion() -> None:
    ended = ended_job(RUNS, deleted_at=DELETED_AT)
    moment = seconds(DELETED_AT)
    assert moment is not None
    for later in (0.0, 3600.0):
        assert held_gpu_seconds(ended, now=moment + later)["productive"] == 100 + 16 * 10
    assert (ended.status.phase, ended.status.finished_at) == ("Deleted", DELETED_AT)
    assert ended.status.reason == "was Running: Training"


def test_a_job_that_never_held_a_gpu_has_no_account() -> None:
    waits = JobObject(
        metadata=RUNS.metadata, spec=RUNS.spec, status=StoredTrainingJobStatus(phase="Pending")
    )
    ended = ended_job(waits, deleted_at=DELETED_AT)
    assert sum(held_gpu_seconds(ended, now=1e10).values()) == 0


def test_a_job_that_had_ended_is_as_it_was() -> None:
    done = JobObject(
        metadata=RUNS.metadata, status=StoredTrainingJobStatus(finished_at="2026-11-23T11:00:00Z")
    )
    assert ended_job(done, deleted_at=DELETED_AT) is done
    assert ended_job(RUNS, deleted_at=None) is RUNS
