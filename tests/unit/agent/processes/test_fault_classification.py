from __future__ import annotations

from pathlib import Path

import pytest

from drumline_trainer.agent.processes import fault_classification
from drumline_trainer.contract import FaultClass

CUDA = "AcceleratorError: CUDA error:"


@pytest.mark.parametrize(
    ("code", "error", "killed", "fault_class"),
    [
        (1, "ValueError: boom", False, FaultClass.APPLICATION),
        (-11, "", False, FaultClass.APPLICATION),
        (-6, "", False, FaultClass.APPLICATION),
        (-9, "", False, FaultClass.INFRASTRUCTURE),
        (-15, "", False, FaultClass.INFRASTRUCTURE),
        (-15, "", True, FaultClass.INFRASTRUCTURE),
        (-9, "MemoryError", False, FaultClass.OUT_OF_MEMORY),
        (-9, "", True, FaultClass.OUT_OF_MEMORY),
        (1, "MemoryError", False, FaultClass.OUT_OF_MEMORY),
        (1, "OutOfMemoryError: CUDA out of memory.", False, FaultClass.OUT_OF_MEMORY),
        (1, "torch.OutOfMemoryError: CUDA", False, FaultClass.OUT_OF_MEMORY),
        (1, "ValueError: not a MemoryError", True, FaultClass.APPLICATION),
        (74, "StorageError: No space left on device", False, FaultClass.INFRASTRUCTURE),
        (75, "ConnectionError: gone", False, FaultClass.INFRASTRUCTURE),
        (1, f"{CUDA} uncorrectable ECC error encountered", False, FaultClass.INFRASTRUCTURE),
        (1, f"{CUDA} no CUDA-capable device is detected", False, FaultClass.INFRASTRUCTURE),
        (1, "RuntimeError: No CUDA GPUs are available", False, FaultClass.INFRASTRUCTURE),
        (1, f"{CUDA} system not yet initialized", False, FaultClass.INFRASTRUCTURE),
        (1, "NVMLError: GPU has fallen off the bus", False, FaultClass.INFRASTRUCTURE),
        (1, "NVMLError: Driver/library version mismatch", False, FaultClass.INFRASTRUCTURE),
        (69, "DeviceError: 4 GPUs were asked for", False, FaultClass.INFRASTRUCTURE),
        (1, f"{CUDA} device-side assert triggered", False, FaultClass.APPLICATION),
        (1, f"{CUDA} an illegal memory access was encountered", False, FaultClass.APPLICATION),
        (65, "CorruptCheckpointError: GPU is lost", False, FaultClass.APPLICATION),
    ],
)
def test_the_class_of_an_end(code: int, error: str, killed: bool, fault_class: FaultClass) -> None:
    assert fault_classification.classify(code, error=error, killed_for_memory=killed) is fault_class


def test_kills_for_memory_are_counted_by_the_kernel(tmp_path: Path) -> None:
    assert fault_classification.memory_kills(tmp_path) == 0
    (tmp_path / "memory.events").write_text("low 0\nmax 7\noom 3\noom_kill 2\n")
    assert fault_classification.memory_kills(tmp_path) == 2


def test_kills_for_memory_counted_by_an_older_kernel(tmp_path: Path) -> None:
    counts = "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"
    (tmp_path / "memory.oom_control").write_text(counts)
    assert fault_classification.memory_kills(tmp_path) == 4


def test_the_own_control_group(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("4:memory:/old\n0::/kubepods/pod7\n")
    assert fault_classification.own_cgroup(membership, root=tmp_path) == tmp_path / "kubepods/pod7"
    assert fault_classification.own_cgroup(tmp_path / "none", root=tmp_path) == tmp_path
    (tmp_path / "memory").mkdir()
    assert fault_classification.own_cgroup(membership, root=tmp_path) == tmp_path / "memory"
