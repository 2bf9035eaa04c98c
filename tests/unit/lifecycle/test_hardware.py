"""Which neighbours of a gang want one NVLink domain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline.api.gpupool import GpuPoolSpec
from drumline.controller.conversion.jobs import gang_of
from drumline.lifecycle.model.hardware import domain_pods, largest_hardware
from drumline.lifecycle.model.verdict import Schedulable
from drumline.scheduling.model import Slice
from tests.builders import a_job

LEVELS = [{"name": "rack", "nodeLabel": "a/rack"}, {"name": "clique", "nodeLabel": "a/clique"}]


def pool(level: str | None = "clique", **hardware: Any) -> GpuPoolSpec:
    said = {"gpu": "GB200", "domainGpus": 72, "domainLevel": level, **hardware}
    return GpuPoolSpec.model_validate(
        {"nodeSelector": {"a": "b"}, "topologyLevels": LEVELS, "hardware": said}
    )


def pods(nodes: int, degrees: dict[str, Any] | None, **spec: Any) -> int:
    trainer = {"globalBatchSize": 720, "parallelism": degrees}
    job = a_job(nodes=nodes, gpusPerNode=4, trainer=trainer, **spec)
    return domain_pods(job.spec, largest_hardware(job.spec, {"nvl": pool()}))


@pytest.mark.parametrize(
    ("nodes", "degrees", "expected"),
    [
        (8, {"tensor": 8}, 2),
        (8, {"tensor": 8, "context": 2}, 4),
        (36, {"tensor": 16, "context": 9}, 4),  # 144 is more than a domain: the tensor alone
        (8, {"tensor": 4}, 1),  # a pod holds it
        (8, {"tensor": 2, "pipeline": 8}, 1),  # stages may be far apart
        (8, None, 1),
        (36, {"mode": "Auto"}, 18),
        (40, {"mode": "Auto"}, 10),
        (7, {"mode": "Auto"}, 7),
    ],
)
def test_whole_groups_want_one_domain(
    nodes: int, degrees: dict[str, Any] | None, expected: int
) -> None:
    assert pods(nodes, degrees) == expected


def test_a_gang_of_many_sizes_is_cut_by_none() -> None:
    assert pods(36, {"mode": "Auto"}, minNodes=1, checkpoint={"claimName": "c"}) == 1


@pytest.mark.parametrize(
    ("pools", "level"),
    [
        ({"a": pool()}, "clique"),
        ({"a": pool(), "b": pool()}, "clique"),
        ({"a": pool(), "b": pool("rack")}, None),  # a level that one of them lacks refuses the job
        ({"a": pool(), "b": pool(domainGpus=8)}, None),
        ({"a": pool("absent")}, None),
        ({"a": pool(None)}, None),
    ],
)
def test_all_pools_of_a_job_have_the_same_domains(
    pools: dict[str, GpuPoolSpec], level: str | None
) -> None:
    hardware = largest_hardware(a_job().spec, pools)
    assert hardware is not None
    assert hardware.domain_level == level


def test_the_scheduler_gets_them_as_a_preferred_slice() -> None:
    trainer = {"globalBatchSize": 720, "parallelism": {"tensor": 8}}
    job = a_job(nodes=8, gpusPerNode=4, trainer=trainer)
    job = replace(job, verdict=Schedulable(hardware=largest_hardware(job.spec, {"nvl": pool()})))
    assert gang_of(job, priority=0).slices == (Slice(level="clique", pods=2, required=False),)
    own = a_job(nodes=8, gpusPerNode=4, trainer=trainer, topology={"preferred": "rack"})
    assert gang_of(replace(own, verdict=job.verdict), priority=0).slices == ()
