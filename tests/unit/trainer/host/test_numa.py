"""Where a GPU is, as the driver and the kernel say it, and who runs beside it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from drumline_trainer.host.cpus import bind_near_gpu, processors_near_gpu

GPU = "GPU-6f1a0c0e-0d1b-4f3c-9f39-1f5d4ae0a7c1"
ALLOWED = sorted(os.sched_getaffinity(0))


def machine(root: Path, *, cpus: str = "0-1,4", node: str = "1") -> Path:
    """One with this GPU on a node of these processors."""
    information = f"Model: \t\t NVIDIA H100\nIRQ: 18\nGPU UUID: \t {GPU}\nBus Type: \t PCIe\n"
    files = {
        "proc/driver/nvidia/gpus/0000:3B:00.0/information": information,
        "proc/driver/nvidia/gpus/0000:5E:00.0/information": information.replace("6f1a", "7f1a"),
        "sys/bus/pci/devices/0000:3b:00.0/numa_node": f"{node}\n",
        "sys/devices/system/node/node1/cpulist": f"{cpus}\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def affinity_after(root: Path, identity: str = GPU) -> set[int]:
    """Of a thread that binds itself: no other thread is touched."""
    seen: list[set[int]] = []

    def bind() -> None:
        bind_near_gpu(identity, root=root)
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=bind)
    thread.start()
    thread.join()
    return seen[0]


def test_a_gpu_is_beside_the_processors_of_its_node(tmp_path: Path) -> None:
    assert processors_near_gpu(GPU, root=machine(tmp_path)) == {0, 1, 4}


@pytest.mark.parametrize(
    ("identity", "node"), [("", "1"), ("MIG-3", "1"), ("GPU-unknown", "1"), (GPU, "-1"), (GPU, "x")]
)
def test_where_it_is_not_said_nothing_is_known(tmp_path: Path, identity: str, node: str) -> None:
    assert processors_near_gpu(identity, root=machine(tmp_path, node=node)) == set()
    assert affinity_after(machine(tmp_path, node=node), identity) == set(ALLOWED)


@pytest.mark.skipif(len(ALLOWED) == 1, reason="one processor is beside everything")
def test_a_rank_runs_beside_its_gpu_within_what_is_allowed(tmp_path: Path) -> None:
    last = ALLOWED[-1]
    assert affinity_after(machine(tmp_path, cpus=f"{last}-{last + 1000}")) == {last}


def test_a_rank_that_may_not_run_there_stays_where_it_is(tmp_path: Path) -> None:
    assert affinity_after(machine(tmp_path, cpus="100000")) == set(ALLOWED)
