"""Files without names: what a folder must have, and what is left in it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from drumline_contract.config import ConfigError, TrainerConfig
from drumline_trainer.memory.offload_store import FileStore


def test_tensors_keep_what_is_written_when_memory_is_given_back(tmp_path: Path) -> None:
    file = FileStore(tmp_path, sizes=[12, 20_000, 2])
    first = file.empty((3,), dtype=torch.float32).fill_(1.0)
    second = file.empty((50, 100), dtype=torch.float32)
    second.copy_(torch.arange(5000.0).view(50, 100))
    third = file.empty((1,), dtype=torch.bfloat16).fill_(3.0)
    file.release([first, second, third])
    assert first.tolist() == [1.0] * 3
    assert torch.equal(second.view(-1), torch.arange(5000.0))
    assert third.tolist() == [3.0]


def test_nothing_is_left_in_the_folder(tmp_path: Path) -> None:
    file = FileStore(tmp_path, sizes=[100])
    file.empty((25,), dtype=torch.float32).zero_()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"offload_folder.*/gone"):
        FileStore(tmp_path / "gone", sizes=[1])


def test_a_full_disk_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int, __: int, size: int) -> None:
        raise OSError(errno.ENOSPC, f"no room for {size}")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match=rf"{tmp_path} must hold 1,003,520 bytes .* free"):
        FileStore(tmp_path, sizes=[1_000_000])


@pytest.mark.parametrize("what", ["optimizer", "parameters", "activations"])
def test_nvme_needs_a_folder(what: str) -> None:
    with pytest.raises(ConfigError, match=rf"memory\.offload_folder: .*offload_{what} is nvme"):
        TrainerConfig.from_dict({"memory": {f"offload_{what}": "nvme"}})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"parallelism": {"data_parallel": "zero1"}}, "is for fsdp, not zero1"),
        ({"optimizer": {"kind": "muon"}}, "muon multiplies matrices"),
        ({"lora": {}}, "not with lora"),
    ],
)
def test_weights_on_the_host_are_refused_where_nothing_gathers_them(
    changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError, match=rf"memory\.offload_parameters: {reason}"):
        TrainerConfig.from_dict({"memory": {"offload_parameters": "cpu"}, **changes})


@pytest.mark.parametrize(
    ("parallelism", "reason"),
    [
        ({"data_parallel": "parameter-server"}, "parameter servers hold the state"),
        ({"data_parallel": "ddp", "local_sgd": {"every_steps": 10}}, "not with local_sgd"),
    ],
)
def test_state_that_lies_elsewhere_is_refused(parallelism: dict[str, object], reason: str) -> None:
    memory = {"offload_optimizer": "cpu"}
    with pytest.raises(ConfigError, match=rf"memory\.offload_optimizer: {reason}"):
        TrainerConfig.from_dict({"memory": memory, "parallelism": parallelism})


def test_activations_that_torch_keeps_itself_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"memory\.offload_activations"):
        TrainerConfig.from_dict(
            {"memory": {"offload_activations": "cpu", "recompute": "selective"}}
        )
