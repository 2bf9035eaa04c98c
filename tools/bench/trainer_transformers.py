"""A step of a transformers module in our trainer beside one in a plain loop, in turns.

The plain loop shards the same module with `fully_shard` by the layers that it names, and steps it
with torch's fused AdamW: what a careful script of transformers does.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_trainer.data.cursor import rank_samples
from drumline_trainer.data.run_data import open_run_data
from drumline_trainer.models.transformers.module import units_of
from drumline_trainer.models.transformers.weights import whole_module
from drumline_trainer.optimization.learning_rate import learning_rate
from tools.bench.trainer_steps import LENGTH, SAMPLES, Beside, in_turns

LAYOUTS = ("fsdp", "ddp")
MODEL: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": LENGTH,
    "tie_word_embeddings": False,
}


def config_of(layout: str, *, source: Path, steps: int) -> TrainerConfig:
    """Of our side."""
    return TrainerConfig.from_dict(
        {
            "model": {
                "family": "transformers",
                "config_json": json.dumps(MODEL),
                "vocab_size": MODEL["vocab_size"],
            },
            "data": {"sequence_length": LENGTH, "source": str(source)},
            "optimizer": {"weight_decay": 0.0},
            "parallelism": {"data_parallel": layout},
            "steps": steps,
            "global_batch_size": SAMPLES,
            "log_every_steps": 10,
        }
    )


def beside(placement: Placement, config: TrainerConfig) -> Beside:
    """Train ours and the plain loop, in turns. On every rank; the job of a pool."""
    return in_turns(placement, config, lambda: PlainLoop(config, placement))


class PlainLoop:
    """The plain script's side."""

    def __init__(self, config: TrainerConfig, placement: Placement) -> None:
        self.config, self.placement = config, placement
        self.module = whole_module(config).train()
        if config.parallelism.data_parallel == "fsdp":
            for unit in units_of(self.module):
                fully_shard(unit)
            fully_shard(self.module)
        else:
            self.module = DistributedDataParallel(self.module)
        rule = config.optimizer
        self.optimizer = torch.optim.AdamW(
            self.module.parameters(),
            betas=(rule.beta1, rule.beta2),
            eps=rule.epsilon,
            weight_decay=0.0,
            fused=True,
        )
        self.dataset = open_run_data(config).training
        self.losses: list[float] = []

    def turn(self, step: int) -> float:
        """Seconds of one step."""
        inputs, targets = self._batch(step)
        self.optimizer.param_groups[0]["lr"] = learning_rate(step, self.config)
        torch.use_deterministic_algorithms(False)
        dist.barrier()
        began = time.perf_counter()
        loss = self._step(inputs, targets)
        dist.barrier()
        seconds = time.perf_counter() - began
        torch.use_deterministic_algorithms(True)
        dist.all_reduce(loss)
        self.losses.append(loss.item() / dist.get_world_size())
        return seconds

    def _step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        logits = self.module(input_ids=inputs, use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        self.optimizer.zero_grad()
        loss.backward()  # pyright: ignore[reportUnknownMemberType]
        most = self.config.optimizer.max_gradient_norm
        if most is not None:
            nn.utils.clip_grad_norm_(self.module.parameters(), most)
        self.optimizer.step()  # pyright: ignore[reportUnknownMemberType]
        return loss.detach()

    def _batch(self, step: int) -> tuple[Tensor, Tensor]:
        size, place = self.config.global_batch_size, self.placement
        batch = self.dataset.batch(
            rank_samples(step * size, batch=size, rank=place.rank, world_size=place.world_size)
        )
        return torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)
