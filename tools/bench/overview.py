"""`drumline list`, `queue` and `why` over a thousand jobs, each a process from start to end.

The objects are read from a file, as `kubectl get -o json` prints them: what an API server takes for
its lists comes on top. `make bench WHAT=overview`; each figure is the median of five processes,
beside a process that starts Python, and nothing else. On a busy machine the time that passes says
more about the machine: processor time stands beside it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.unit.overview.objects import a_job, a_node, a_pool, a_queue, running
from tools.bench.report import Row, publish

JOBS: Final = 1000
RUNNING: Final = 200
RUNS: Final = 5
MOST_SECONDS: Final = 1.0


def main() -> None:
    """Write the objects, measure, publish."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "all.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": _objects()}))
        drumline = [sys.executable, "-m", "drumline"]
        commands = {
            "list": [*drumline, "list", "-A", "-f", str(file)],
            "queue": [*drumline, "queue", "-f", str(file)],
            "why": [*drumline, "why", "waits-7", "-n", "team", "-f", str(file)],
        }
        commands["python"] = [sys.executable, "-c", "pass"]
        took = {name: _measured(command) for name, command in commands.items()}
    bare, _ = took.pop("python")
    rows = [Row(name="Python starts and ends", value=bare, unit="s")]
    for name, (passed, used) in took.items():
        about = f"drumline {name}, {JOBS} jobs, median of {RUNS} processes"
        met = passed <= MOST_SECONDS
        rows.append(Row(name=about, value=passed, unit="s", goal=f"{MOST_SECONDS:g}", met=met))
        rows.append(Row(name="the same, processor time", value=used, unit="s"))
    publish("overview", rows)


def _objects() -> list[dict[str, Any]]:
    why = "needs 8 GPUs; queue research has 0 of 1600 nominal GPUs free in pool gpus"
    blocked = {"phase": "Pending", "reason": "QuotaExhausted", "message": why}
    jobs = [a_job(f"waits-{number}", status=blocked) for number in range(JOBS - RUNNING)]
    for number in range(RUNNING):
        places = {"gpuPool": "gpus", "prefix": "node-", "nodes": [str(number)]}
        jobs.append(a_job(f"runs-{number}", status=running(assignment=places, step=4)))
    nodes = [a_node(f"node-{number}", rack=f"r{number // 32}") for number in range(RUNNING)]
    return [a_queue("research", gpus=1600), a_pool(), *nodes, *jobs]


def _measured(command: list[str]) -> tuple[float, float]:
    """Seconds that pass, and seconds of processor."""
    passed: list[float] = []
    used: list[float] = []
    for _ in range(RUNS):
        before, begun = _children(), time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        passed.append(time.perf_counter() - begun)
        used.append(_children() - before)
    return median(passed), median(used)


def _children() -> float:
    use = resource.getrusage(resource.RUSAGE_CHILDREN)
    return use.ru_utime + use.ru_stime


if __name__ == "__main__":
    main()
