"""Which device a rank gets, on machines that do not exist."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from drumline_contract.config import ConfigError
from drumline_trainer.sharding.device import device_of_rank
from drumline_trainer.sharding.gpus import (
    DeviceError,
    gpu_device_files,
    gpus_were_given,
    identity_of,
)

POD = {"DRUMLINE_GPUS_PER_NODE": "4"}
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class FakeGpus:
    """What a process sees."""

    visible: int
    failing: int | None = None
    supported: bool = True

    def are_supported(self) -> bool:
        return self.supported

    def count(self) -> int:
        return self.visible

    def why_none(self) -> str:
        return "Found no NVIDIA driver on your system."

    def probe(self, index: int) -> None:
        if index == self.failing:
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered\nmore")


def device(
    local_rank: int = 0,
    *,
    of: int = 4,
    files: tuple[str, ...] = (),
    environ: dict[str, str] | None = None,
    failing: int | None = None,
    visible: int,
    supported: bool = True,
) -> torch.device:
    return device_of_rank(
        local_rank,
        of=of,
        environ=environ or {},
        gpus=FakeGpus(visible=visible, failing=failing, supported=supported),
        device_files=files,
    )


def test_every_rank_of_a_pod_has_a_gpu_of_its_own() -> None:
    devices = [device(rank, visible=4, environ=POD) for rank in range(4)]
    assert devices == [torch.device("cuda", rank) for rank in range(4)]


@pytest.mark.parametrize("visible", [1, 2, 3])
def test_a_pod_with_fewer_gpus_than_it_asked_for_trains_on_none(visible: int) -> None:
    words = f"4 GPUs were asked for and {visible} can be seen here"
    for rank in range(4):
        with pytest.raises(DeviceError, match=words):
            device(rank, visible=visible, environ=POD)


@pytest.mark.parametrize(
    ("environ", "files"),
    [
        (POD, ()),
        ({"DRUMLINE_DEVICE": "gpu"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, ()),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-8a1b"}, ()),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, ("nvidia0",)),
        ({}, ("kfd",)),
    ],
)
def test_without_a_driver_nothing_trains_where_gpus_were_given(
    environ: dict[str, str], files: tuple[str, ...]
) -> None:
    with pytest.raises(DeviceError, match="none can be used here: Found no NVIDIA driver"):
        device(visible=0, environ=environ, files=files)


@pytest.mark.parametrize(
    ("environ", "files"),
    [
        ({}, ()),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, ()),  # an image says it, without any GPU
        ({"CUDA_VISIBLE_DEVICES": ""}, ("nvidia0",)),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ("nvidia0",)),
    ],
)
def test_a_machine_that_gave_no_gpu_trains_on_its_processors(
    environ: dict[str, str], files: tuple[str, ...]
) -> None:
    assert device(visible=0, environ=environ, files=files) == CPU


def test_processors_can_be_asked_for_whatever_there_is() -> None:
    assert device(visible=4, environ=POD | {"DRUMLINE_DEVICE": "cpu"}) == CPU
    assert device(visible=0, environ=POD | {"DRUMLINE_DEVICE": "cpu"}) == CPU
    with pytest.raises(ConfigError, match=r"DRUMLINE_DEVICE.*'tpu'"):
        device(visible=4, environ={"DRUMLINE_DEVICE": "tpu"})


def test_a_torch_without_cuda_is_a_mistake_of_the_image() -> None:
    with pytest.raises(ConfigError, match="DRUMLINE_DEVICE=cpu"):
        device(visible=0, environ=POD, supported=False)


def test_a_gpu_that_does_not_compute_is_found_before_the_first_step() -> None:
    assert device(1, visible=4, environ=POD, failing=2) == torch.device("cuda", 1)
    with pytest.raises(DeviceError, match=r"GPU 2.*CUDA.*ECC"):
        device(2, visible=4, environ=POD, failing=2)


def test_a_launcher_may_show_each_rank_its_own_gpu_alone() -> None:
    assert device(3, visible=1) == torch.device("cuda", 0)
    with pytest.raises(ConfigError, match=r"4 ranks.*2 GPUs"):
        device(0, visible=2)


def test_device_files_tell_that_a_machine_has_gpus(tmp_path: Path) -> None:
    for name in ("nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert gpu_device_files(tmp_path) == []
    assert not gpus_were_given({}, device_files=gpu_device_files(tmp_path))
    (tmp_path / "nvidia7").touch()
    assert gpus_were_given({}, device_files=gpu_device_files(tmp_path))


def test_a_processor_has_no_name() -> None:
    assert identity_of(CPU) == ""
