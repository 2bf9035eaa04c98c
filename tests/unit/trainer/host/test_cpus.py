from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from drumline_trainer.host.cpus import available_cpus, interface_of, threads_per_rank

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


def test_every_rank_computes_with_at_least_one_thread() -> None:
    assert threads_per_rank(1) >= 1
    assert threads_per_rank(10_000) == 1


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.53", "::1"])
def test_loopback_addresses_are_on_lo(address: str) -> None:
    assert interface_of(address) == "lo"


def test_addresses_of_this_machine_are_on_their_interface() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: asks which address would be used
        address = probe.getsockname()[0]
    assert interface_of(address) in {name for _, name in socket.if_nameindex()}


def test_a_foreign_address_is_an_error_with_its_name() -> None:
    with pytest.raises(OSError, match=r"203\.0\.113\.9"):
        interface_of("203.0.113.9")
