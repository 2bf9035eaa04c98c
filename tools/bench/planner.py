"""`make bench WHAT=planner`: how long the planner thinks, in processor time of one core.

Each search runs in a process of its own, so that none uses what another has worked out.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

from drumline_contract.config import MODEL_PRESETS, DataConfig, Precision, TrainerConfig
from drumline_contract.hardware import GPU_MODELS, LINKS
from drumline_planner.network import cluster_of
from drumline_planner.search import search
from drumline_planner.space import Goal
from tools.bench.report import Row, publish

GOAL_SECONDS = 2.0
ROUNDS = 3
CASES = (
    ("llama-8b", 1024, 8192),
    ("llama-70b", 16_384, 8192),
    ("llama-405b", 16_384, 8192),
    ("qwen-moe", 16_384, 8192),
)
"""Model, GPUs, tokens of a sequence; a step has 2048 sequences."""


def seconds_of(model: str, gpus: int, sequence: int) -> dict[str, float]:
    """Processor seconds of a search for the five best layouts, and how many it worked out."""
    config = TrainerConfig(
        model=MODEL_PRESETS[model],
        data=DataConfig(sequence_length=sequence),
        global_batch_size=2048,
        precision=Precision.BF16,
    )
    on = cluster_of(GPU_MODELS["H100"], gpus=gpus, network=LINKS["infiniband-ndr"])
    goal = Goal(config=config, cluster=on, host_activations=True)
    began = time.process_time()
    result = search(goal)
    return {"seconds": time.process_time() - began, "examined": float(result.examined)}


def measured(model: str, gpus: int, sequence: int) -> list[Row]:
    """The median of a few processes."""
    command = [sys.executable, "-m", "tools.bench.planner", model, str(gpus), str(sequence)]
    rounds = [
        json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        for _ in range(ROUNDS)
    ]
    seconds = statistics.median(each["seconds"] for each in rounds)
    return [
        Row(
            name=f"{model} on {gpus} H100, five best layouts",
            value=seconds,
            unit="s",
            goal=f"<= {GOAL_SECONDS:g} s",
            met=seconds <= GOAL_SECONDS,
        ),
        Row(name="  of these worked out", value=rounds[0]["examined"], unit="layouts"),
    ]


def main() -> None:
    """Measure all cases, or print what one took."""
    if len(sys.argv) > 1:
        model, gpus, sequence = sys.argv[1:4]
        print(json.dumps(seconds_of(model, int(gpus), int(sequence))))
        return
    publish("planner", [row for case in CASES for row in measured(*case)])


if __name__ == "__main__":
    main()
