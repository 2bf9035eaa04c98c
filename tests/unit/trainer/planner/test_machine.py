"""What ranks see, as a cluster to plan for."""

from __future__ import annotations

import pytest

from drumline_contract.config import ConfigError, HardwareConfig
from drumline_planner.machine import PROCESSOR, SeenDevice, machine, recognized

GIB = 1 << 30


@pytest.mark.parametrize(
    ("name", "gib", "model"),
    [
        ("NVIDIA H100 80GB HBM3", 79.1, "H100"),
        ("NVIDIA A100-SXM4-80GB", 79.2, "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "A100-40GB"),
        ("NVIDIA H200", 139.8, "H200"),
        ("NVIDIA GB200", 184.0, "GB200"),
        ("AMD Instinct MI300X", 191.5, "MI300X"),
    ],
)
def test_a_device_is_recognized_by_its_drivers_name(name: str, gib: float, model: str) -> None:
    assert recognized(SeenDevice(name=name, memory_bytes=int(gib * GIB))).name == model


def test_an_unknown_device_is_as_large_as_its_driver_says() -> None:
    device = recognized(SeenDevice(name="NVIDIA L40S", memory_bytes=44 * GIB))
    assert (device.memory_bytes, device.bf16_flops) == (44 * GIB, 362e12)


def test_devices_that_differ_by_some_mebibytes_are_planned_for_alike() -> None:
    seen = [
        SeenDevice(name="NVIDIA H100 80GB HBM3", memory_bytes=79 * GIB + extra)
        for extra in (1 << 20, 200 << 20)
    ]
    clusters = [machine(HardwareConfig(), gpus=16, gpus_per_node=8, seen=device) for device in seen]
    assert clusters[0] == clusters[1]


def test_what_the_configuration_says_wins() -> None:
    seen = SeenDevice(name="NVIDIA H100 80GB HBM3", memory_bytes=79 * GIB)
    hardware = HardwareConfig(gpu="H200", network_gbps=100, domain_gpus=16)
    planned = machine(hardware, gpus=32, gpus_per_node=8, seen=seen)
    assert planned.gpu.name == "H200"
    assert planned.domain == 16
    assert planned.levels[-1].bandwidth == pytest.approx(12.5e9)


def test_ranks_without_a_gpu_plan_alike_whatever_their_host() -> None:
    seen = [SeenDevice(name="", memory_bytes=size * GIB) for size in (3, 300)]
    planned = [machine(HardwareConfig(), gpus=2, gpus_per_node=1, seen=host) for host in seen]
    assert {each.gpu for each in planned} == {PROCESSOR}


def test_nothing_says_what_the_gpus_are() -> None:
    with pytest.raises(ConfigError, match="There are A100, A100-40GB"):
        machine(HardwareConfig(), gpus=2, gpus_per_node=1)
