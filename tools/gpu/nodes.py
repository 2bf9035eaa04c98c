"""`check-nodes` with one rank for each GPU, each as in a pod of its own, over NCCL."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from drumline_trainer.node_check.verdicts import VERSION
from tools.bench.report import Row
from tools.gpu.machine import ROOT
from tools.gpu.runs import Bench, CheckFailedError

PORT = 29417
SECONDS = 240
ON_PROCESSORS = ("--matrix", "64", "--memory", "65536", "--message", "65536", "--repeats", "2")


def checked(bench: Bench) -> Iterator[Row]:
    """Nothing is wrong on any GPU; how fast they are is shown, and judged by the check itself."""
    verdicts = _verdicts(bench)
    for member in verdicts["members"]:
        name = f"GPU {member['index']}"
        wrong = "wrong" in member["failed"]
        yield Row(
            name=f"{name}: products",
            value=member["matmul_tflops"],
            unit="Tflop/s",
            goal="right",
            met=not wrong,
        )
        yield Row(name=f"{name}: memory", value=member["memory_gbps"], unit="GB/s")
        for number, rate in enumerate(member["pair_gbps"]):
            yield Row(name=f"{name}: partner of round {number + 1}", value=rate, unit="GB/s")
        yield Row(
            name=f"{name}: verdict",
            value=float(not member["failed"]),
            unit="passed",
            goal=member["failed"] or "passed",
            met=None if not wrong else False,
        )


def _verdicts(bench: Bench) -> dict[str, Any]:
    """Each rank is a process that sees its own GPU alone, as in a pod of one."""
    words = [sys.executable, "-m", "drumline_trainer", "check-nodes"]
    words += () if bench.machine.on_gpu else ON_PROCESSORS
    ranks = bench.machine.ranks
    processes: list[subprocess.Popen[str]] = []
    for rank in range(ranks):
        variables = {
            "TORCHELASTIC_RUN_ID": "check",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(PORT),
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
        }
        if bench.machine.on_gpu:
            variables["CUDA_VISIBLE_DEVICES"] = str(rank)
        environment = {**bench.machine.environment, **variables}
        pipe = subprocess.PIPE
        processes.append(
            subprocess.Popen(words, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)
        )
    try:
        ends = [process.communicate(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    failed = [
        (end, process) for end, process in zip(ends, processes, strict=True) if process.returncode
    ]
    if failed:
        raise CheckFailedError(f"exit code {failed[0][1].returncode}: {failed[0][0][1][-300:]}")
    verdicts: dict[str, Any] = json.loads(ends[0][0].splitlines()[-1])
    if verdicts["nodeCheck"] != VERSION:
        raise CheckFailedError(f"version {verdicts['nodeCheck']}")
    return verdicts
