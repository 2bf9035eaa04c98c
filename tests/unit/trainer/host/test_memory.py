from __future__ import annotations

from pathlib import Path

import pytest

from drumline_trainer.host.memory import available_memory

MEMINFO = "MemTotal: 24000 kB\nMemFree: 2000 kB\nMemAvailable: 19000 kB\n"
KB = 1024


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, 19_000 * KB, id="no control group"),
        pytest.param({"memory.max": "max\n", "memory.current": "1\n"}, 19_000 * KB, id="no limit"),
        pytest.param(
            {
                "memory.max": f"{10_000 * KB}\n",
                "memory.current": f"{6_000 * KB}\n",
                "memory.stat": f"anon 7\ninactive_file {5_000 * KB}\n",
            },
            9_000 * KB,
            id="version 2",
        ),
        pytest.param(
            {
                "memory/memory.limit_in_bytes": f"{10_000 * KB}\n",
                "memory/memory.usage_in_bytes": f"{6_000 * KB}\n",
                "memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {2_000 * KB}\n",
            },
            6_000 * KB,
            id="version 1",
        ),
        pytest.param(
            {
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/memory.usage_in_bytes": "5\n",
                "memory/memory.stat": "total_inactive_file 3\n",
            },
            19_000 * KB,
            id="version 1 without a limit",
        ),
    ],
)
def test_what_is_available_is_the_machines_or_what_the_containers_limit_leaves(
    tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "memory").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert available_memory(proc=tmp_path, cgroup=tmp_path) == expected


def test_this_machine_says_it() -> None:
    assert available_memory() > 0
