from __future__ import annotations

import os
from pathlib import Path

import pytest

from drumline_trainer.host.cpus import available_cpus, threads_per_rank

AFFINITY = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        pytest.param({"cpu.max": "50000 100000\n"}, 0.5, id="version 2"),
        pytest.param({"cpu.max": "max 100000\n"}, AFFINITY, id="version 2 without a limit"),
        pytest.param({"cpu.max": "99900000 100000\n"}, AFFINITY, id="a limit above the affinity"),
        pytest.param(
            {"cpu/cpu.cfs_quota_us": "25000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            0.25,
            id="version 1",
        ),
        pytest.param(
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            AFFINITY,
            id="version 1 without a limit",
        ),
        pytest.param({}, AFFINITY, id="no control group"),
    ],
)
def test_cpus_are_the_affinity_or_the_containers_limit(
    tmp_path: Path, files: dict[str, str], cpus: float
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_cpus(tmp_path) == cpus


def test_every_rank_computes_with_a_thread_at_least() -> None:
    assert threads_per_rank(1) >= 1
    assert threads_per_rank(10_000) == 1
