"""What the pools of a job say of its GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.lifecycle.model.hardware import DomainSize, largest_hardware
from drumline_api.gpupool import GpuPoolSpec
from tests.builders import a_job

LEVELS = [{"name": "rack", "nodeLabel": "a/rack"}, {"name": "clique", "nodeLabel": "a/clique"}]


def pool(level: str | None = "clique", **hardware: Any) -> GpuPoolSpec:
    said = {"gpu": "GB200", "domainGpus": 72, "domainLevel": level, **hardware}
    return GpuPoolSpec.model_validate(
        {"nodeSelector": {"a": "b"}, "topologyLevels": LEVELS, "hardware": said}
    )


def racks(level: str | None = "clique", **hardware: Any) -> GpuPoolSpec:
    return pool(level, **({"rackGpus": 288, "rackLevel": "rack"} | hardware))


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
    assert (hardware.domain and hardware.domain.level) == level


@pytest.mark.parametrize(
    ("pools", "rack"),
    [
        ({"a": racks(), "b": racks()}, DomainSize(level="rack", gpus=288)),
        ({"a": racks(), "b": racks(rackGpus=144)}, None),
        ({"a": racks(rackLevel="absent")}, None),
        ({"a": racks("rack", rackLevel="clique")}, None),  # it would lie inside of the domains
    ],
)
def test_all_pools_of_a_job_have_the_same_racks(
    pools: dict[str, GpuPoolSpec], rack: DomainSize | None
) -> None:
    hardware = largest_hardware(a_job().spec, pools)
    assert hardware is not None
    assert hardware.rack == rack


def test_the_ranks_hear_of_the_racks_too() -> None:
    hardware = largest_hardware(a_job().spec, {"a": racks(oversubscription=3)})
    assert hardware is not None
    assert (hardware.config.rack_gpus, hardware.config.oversubscription) == (288, 3)
