"""Which neighbours of a gang want one NVLink domain, and which one rack."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline.controller.jobs.conversion import gang_of
from drumline.lifecycle.model.hardware import largest_hardware
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.sizes import sizes_of
from drumline.lifecycle.model.verdict import Schedulable
from drumline.lifecycle.plan.acceptance import judge
from drumline_api.gpupool import GpuPoolSpec
from tests.builders import a_job

LEVELS = [{"name": "rack", "nodeLabel": "a/rack"}, {"name": "clique", "nodeLabel": "a/clique"}]
ELASTIC: dict[str, Any] = {"minNodes": 1, "checkpoint": {"claimName": "c"}}


def judged(
    nodes: int, degrees: dict[str, Any] | None, *, hardware: dict[str, Any], **spec: Any
) -> Job:
    trainer: dict[str, Any] = {"model": "llama-8b", "globalBatchSize": 64, "microBatchSize": 1}
    trainer |= {"parallelism": degrees}
    job = a_job(nodes=nodes, gpusPerNode=4, trainer=trainer, **spec)
    pool = GpuPoolSpec.model_validate(
        {
            "nodeSelector": {"a": "b"},
            "topologyLevels": LEVELS,
            "hardware": {"gpu": "GB200", **hardware},
        }
    )
    largest = largest_hardware(job.spec, {"nvl": pool})
    verdict = judge(job.spec, largest) if spec else Schedulable(hardware=largest)
    return replace(job, verdict=verdict)


def slices(
    nodes: int, degrees: dict[str, Any] | None, *, hardware: dict[str, Any], **spec: Any
) -> list[tuple[str, int]]:
    gang = gang_of(judged(nodes, degrees, hardware=hardware, **spec), priority=0)
    assert not any(piece.required for piece in gang.slices)
    return [(piece.level, piece.pods) for piece in gang.slices]


DOMAINS = {"domainGpus": 72, "domainLevel": "clique"}
RACKS = {"rackGpus": 16, "rackLevel": "rack"}


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
    wanted = [("clique", expected)] if expected > 1 else []
    assert slices(nodes, degrees, hardware=DOMAINS) == wanted


@pytest.mark.parametrize(
    ("nodes", "degrees", "expected"),
    [
        (12, {"pipeline": 4}, 3),  # a stage is 3 pods
        (12, {"pipeline": 2}, 3),  # a stage is 6, of which a rack holds no more than 4
        (9, {"replicate": 3}, 3),  # a copy
        (8, {"replicate": 2, "pipeline": 2}, 4),  # both copies of a stage fit
        (12, {"replicate": 6}, 4),  # two copies
        (8, {"pipeline": 4, "tensor": 2}, 2),
        (2, {"pipeline": 4}, 1),  # a stage is less than a pod
        (12, {}, 1),  # all one group: packing keeps it together
        (12, None, 1),
        (8, {"mode": "Auto"}, 4),
        (4, {"mode": "Auto"}, 2),  # the whole gang fits: packing sees to that, halves are the rest
        (12, {"mode": "Auto", "pipeline": 4}, 3),
    ],
)
def test_stages_and_copies_want_one_rack(
    nodes: int, degrees: dict[str, Any] | None, expected: int
) -> None:
    wanted = [("rack", expected)] if expected > 1 else []
    assert slices(nodes, degrees, hardware=RACKS) == wanted


def test_domains_lie_whole_in_racks() -> None:
    both = DOMAINS | {"domainGpus": 8} | RACKS
    assert slices(8, {"tensor": 8, "pipeline": 2}, hardware=both) == [("rack", 4), ("clique", 2)]
    # a stage is 6 pods and a rack holds 4, but 3 would cut a tensor
    assert slices(12, {"tensor": 8, "pipeline": 2}, hardware=both) == [("clique", 2)]
    assert slices(16, {"mode": "Auto"}, hardware=both) == [("rack", 4), ("clique", 2)]


def test_every_size_of_an_elastic_gang_is_made_of_whole_slices() -> None:
    several = ELASTIC | {"minNodes": 2}
    assert sizes_of(judged(8, {"mode": "Auto"}, hardware=DOMAINS, **several)) == (2, 4, 8)
    assert slices(8, {"mode": "Auto"}, hardware=DOMAINS, **several) == [("clique", 2)]
    tensor = {"tensor": 4, "pipeline": 2}
    assert sizes_of(judged(8, tensor, hardware=RACKS, **several)) == (2, 4, 8)
    assert slices(8, tensor, hardware=RACKS, **several) == []  # of two pods a stage is one
    assert slices(8, tensor, hardware=RACKS, **(ELASTIC | {"minNodes": 4})) == [("rack", 2)]


def test_a_topology_of_its_own_is_taken_by_its_word() -> None:
    own = {"topology": {"preferred": "rack"}}
    assert slices(8, {"tensor": 8}, hardware=DOMAINS, **own) == []
