"""`make test-all WHAT=constructions`: ranks of 1,024-rank runs of 8B, 70B and 405B, without a GPU.

Each rank is assembled as `train` does, in a world whose collectives do nothing (torch's fake
process group). Nothing is written into its weights, so they take no memory. What it would hold,
counted tensor by tensor, is compared with the planner's bill. Then the commit of such a checkpoint.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from drumline_contract.config import TrainerConfig
from drumline_contract.config.presets import MODEL_PRESETS
from drumline_contract.layout import Axis
from drumline_contract.layout_validation import validated_layout
from drumline_planner.memory import rank_lines
from drumline_planner.setup import TrainingSetup
from drumline_trainer.assembly.assemble import assemble
from drumline_trainer.assembly.optimizer import build_optimizer
from drumline_trainer.sharding.world import World
from tools.bench import commits
from tools.bench.report import Row, publish
from tools.bench.trainer_start import ENVIRONMENT, ROOT

RANKS = 1024
MOST_SECONDS = 60.0
"""Of processor time, from the import of torch on."""
APART = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Construction:
    """One run, of which some ranks are assembled."""

    preset: str
    parallelism: dict[str, Any]
    places: tuple[int, ...] = (0,)
    """In the pipeline, of the ranks that are assembled."""
    settings: dict[str, Any] = field(default_factory=dict[str, Any])


CONSTRUCTIONS = {
    "8B, FSDP 1024": Construction(preset="llama-8b", parallelism={"data_parallel": "fsdp"}),
    "8B, HSDP 128 x 8": Construction(
        preset="llama-8b", parallelism={"data_parallel": "fsdp", "replicate": 128}
    ),
    "70B, FSDP 128, TP 8": Construction(
        preset="llama-70b", parallelism={"data_parallel": "fsdp", "tensor": 8}
    ),
    "70B, FSDP 32, TP 8, PP 4": Construction(
        preset="llama-70b",
        parallelism={"data_parallel": "fsdp", "tensor": 8, "pipeline": 4},
        places=(0, 3),
    ),
    "405B, FSDP 8, TP 8, PP 16": Construction(
        preset="llama-405b",
        parallelism={"data_parallel": "fsdp", "tensor": 8, "pipeline": 16},
        places=(0, 7, 15),
    ),
    "405B, FSDP 128, TP 8": Construction(
        preset="llama-405b", parallelism={"data_parallel": "fsdp", "tensor": 8}
    ),
}


def construct(construction: Construction, *, place: int) -> dict[str, float]:
    """Assemble the first rank at this place of the pipeline; in a process of its own."""
    began = time.process_time()
    config = TrainerConfig.from_dict(
        {
            "parallelism": construction.parallelism,
            "global_batch_size": RANKS,
            "precision": "bf16",
            "data": {"sequence_length": 8192},
            **construction.settings,
        }
    )
    config = replace(config, model=MODEL_PRESETS[construction.preset])
    layout = validated_layout(config, world_size=RANKS)
    device = torch.device("cpu")
    rank = next(
        rank
        for rank in range(RANKS)
        if World(layout=layout, rank=rank, device=device).index(Axis.PIPELINE) == place
    )
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=RANKS)
    world = World.join(layout, device=device)
    model = assemble(config, world)
    seconds = time.process_time() - began
    weights = sum(part.tensor.nbytes for part in model.slices)
    # moments are filled with zeros: without storage they are only counted
    shadows = [replace(part, tensor=part.tensor.to("meta")) for part in model.slices]
    state = build_optimizer(shadows, config.optimizer, world, memory=config.memory).slices()
    lines = rank_lines(TrainingSetup.of(config, layout), place)
    billed = {line.name: line.size for line in lines}
    return {
        "seconds": seconds,
        "weights": weights,
        "moments": sum(part.tensor.nbytes for part in state) - weights,
        "billed_weights": billed["parameters"],
        "billed_moments": billed["optimizer state"],
    }


def rows_of(name: str) -> Iterator[Row]:
    """Of one construction."""
    for place in CONSTRUCTIONS[name].places:
        done = subprocess.run(
            [sys.executable, "-m", "tools.bench.constructions", "--one", name, str(place)],
            cwd=ROOT,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise AssertionError(f"{name}: {done.stderr[-2000:]}")
        made = json.loads(done.stdout.splitlines()[-1])
        where = f"{name}, stage {place}" if len(CONSTRUCTIONS[name].places) > 1 else name
        yield Row(
            name=f"{where}: construction",
            value=made["seconds"],
            unit="s",
            goal=f"<= {MOST_SECONDS:.0f} s",
            met=made["seconds"] <= MOST_SECONDS,
        )
        for kind in ("weights", "moments"):
            ratio = made[kind] / made[f"billed_{kind}"]
            yield Row(
                name=f"{where}: {kind} of {made[kind] / 2**20:.0f} MiB beside the bill",
                value=ratio,
                unit="x",
                goal=f"within {APART:.0%}",
                met=abs(ratio - 1) <= APART,
            )


def main(arguments: list[str]) -> int:
    """Measure and publish all, or those named."""
    if arguments[:1] == ["--one"]:
        _, name, place = arguments
        print(json.dumps(construct(CONSTRUCTIONS[name], place=int(place))))
        return 0
    rows: list[Row] = []
    measured = [rows_of(name) for name in arguments or CONSTRUCTIONS]
    if not arguments:
        measured.append(commits.rows())
    for row in itertools.chain.from_iterable(measured):
        print(f"  {row.name}: {row.value:.4g} {row.unit}", flush=True)
        rows.append(row)
    publish("constructions", rows, command="python -m tools.bench.constructions")
    return 1 if any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
