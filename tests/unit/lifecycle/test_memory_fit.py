"""A job that cannot fit in its GPUs' memory hears it before it waits for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline.lifecycle.model.conditions import condition
from drumline.lifecycle.model.hardware import PoolHardware, largest_hardware
from drumline.lifecycle.model.observed import Observed
from drumline.lifecycle.model.verdict import Refusal, Schedulable
from drumline.lifecycle.plan.acceptance import judge
from drumline.lifecycle.plan.planner import plan_job
from drumline_api.conditions import ConditionType, Reason
from drumline_api.gpupool import GpuPoolSpec
from drumline_contract.config import HardwareConfig
from tests.builders import a_job, admitted, with_status
from tests.texts import missing

H100 = PoolHardware(pool="h100", config=HardwareConfig(gpu="H100"), refuses=False)
TOO_LARGE: dict[str, Any] = {
    "nodes": 1,
    "gpusPerNode": 8,
    "trainer": {
        "model": "llama-8b",
        "globalBatchSize": 64,
        "sequenceLength": 8192,
        "precision": "bf16",
    },
}
FITS = TOO_LARGE | {
    "trainer": TOO_LARGE["trainer"]
    | {"microBatchSize": 1, "overrides": {"memory": {"recompute": "full"}}}
}


def pool(gpu: str | None, **more: Any) -> GpuPoolSpec:
    spec: dict[str, Any] = {"nodeSelector": {"a": "b"}}
    return GpuPoolSpec.model_validate(
        spec if gpu is None else spec | {"hardware": {"gpu": gpu, **more}}
    )


def test_what_it_needs_of_what_there_is_and_the_smallest_change() -> None:
    verdict = judge(a_job(**TOO_LARGE).spec, H100)
    assert isinstance(verdict, Schedulable)
    assert verdict.shortage is not None
    message = verdict.shortage.message
    assert not missing(message, "415.4 GiB", "79.2 GiB", "H100", "GpuPool h100")
    assert "trainer.microBatchSize: 1 needs" in message


def test_the_change_that_it_names_fits() -> None:
    assert judge(a_job(**FITS).spec, H100) == Schedulable(hardware=H100)


def test_a_layout_that_the_ranks_choose_is_billed_at_its_smallest() -> None:
    auto = {"trainer": TOO_LARGE["trainer"] | {"parallelism": {"mode": "Auto"}}}
    assert judge(a_job(**TOO_LARGE | auto).spec, H100) == Schedulable(hardware=H100)
    auto["trainer"]["model"] = "llama-405b"
    verdict = judge(a_job(**TOO_LARGE | auto).spec, H100)
    assert isinstance(verdict, Schedulable)
    assert verdict.shortage is not None
    assert "nodes: " in verdict.shortage.message


def test_a_pool_may_refuse() -> None:
    verdict = judge(a_job(**TOO_LARGE).spec, replace(H100, refuses=True))
    assert isinstance(verdict, Refusal)
    assert verdict.reason is Reason.MEMORY_EXCEEDED
    assert "415.4 GiB" in verdict.message


@pytest.mark.parametrize(
    ("spec", "pools", "expected"),
    [
        ({}, {"a": pool("H100"), "b": pool("H200")}, "b"),
        ({"gpuPool": "a"}, {"a": pool("H100"), "b": pool("H200")}, "a"),
        ({"gpuPools": ["c", "a"]}, {"a": pool("H100"), "b": pool("H200"), "c": pool("B200")}, "c"),
        ({}, {"a": pool("H100"), "b": pool(None)}, None),  # it may fit in b
        ({"gpuPool": "absent"}, {"a": pool("H100")}, None),
        ({}, {}, None),
    ],
)
def test_what_fits_nowhere_is_what_does_not_fit_in_the_largest(
    spec: dict[str, Any], pools: dict[str, GpuPoolSpec], expected: str | None
) -> None:
    largest = largest_hardware(a_job(**spec).spec, pools)
    assert (largest and largest.pool) == expected


def test_of_equal_memory_the_pool_that_only_warns_decides() -> None:
    pools = {"a": pool("H100", whenMemoryExceeded="Refuse"), "b": pool("H100")}
    largest = largest_hardware(a_job().spec, pools)
    assert largest is not None
    assert not largest.refuses


def test_a_job_that_is_placed_at_once_hears_it_too() -> None:
    job = admitted(a_job(**TOO_LARGE), nodes=("node-a",))
    epoch = job.status.epoch or 0
    job = replace(job, verdict=judge(job.spec, H100))
    planned = plan_job(job, Observed(), now=10.0, epoch=epoch)
    assert planned.status is not None
    shown = condition(planned.status, ConditionType.EXCEEDS_MEMORY)
    assert shown is not None
    assert shown.status == "True"
    assert planned.status.assignment == job.status.assignment


def test_the_condition_is_written_once_and_cleared() -> None:
    job = replace(a_job(**TOO_LARGE), verdict=judge(a_job(**TOO_LARGE).spec, H100))
    planned = plan_job(job, Observed(), now=10.0, epoch=1)
    assert planned.status is not None
    shown = condition(planned.status, ConditionType.EXCEEDS_MEMORY)
    assert shown is not None
    assert (shown.status, shown.reason) == ("True", "MemoryExceeded")
    warned = replace(with_status(job, planned.status), verdict=job.verdict)
    assert plan_job(warned, Observed(), now=11.0, epoch=1).status is None
    changed = replace(warned, spec=a_job(**FITS).spec, verdict=judge(a_job(**FITS).spec, H100))
    planned = plan_job(changed, Observed(), now=12.0, epoch=1)
    assert planned.status is not None
    shown = condition(planned.status, ConditionType.EXCEEDS_MEMORY)
    assert shown is not None
    assert (shown.status, shown.reason) == ("False", "MemorySuffices")
