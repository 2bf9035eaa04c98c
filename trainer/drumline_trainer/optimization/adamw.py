"""AdamW (Loshchilov and Hutter 2019) over this rank's shards.

The update is elementwise, so every rank updates its own shard without communication, and the
optimizer is given the shards as plain tensors: it need not know of the mesh (distributed tensors
would work out their sharding rules anew in every process, half a second before its first step).
Weight decay is for matrices only: norm weights, biases and embeddings are left alone (a tied
embedding is an embedding).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from drumline_trainer.config import OptimizerConfig
from drumline_trainer.parallelism.shards import local_shard


class ShardedAdamW(torch.optim.AdamW):
    """Fused AdamW with one group that decays and one that does not."""

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        """Share the storage of the model's shards, which must have been given one."""
        self.weights = dict(model.named_parameters())
        self.shards = {
            name: nn.Parameter(local_shard(weight.detach()))
            for name, weight in self.weights.items()
        }
        decaying = {name for name, weight in self.weights.items() if decays(name, weight)}
        super().__init__(
            [
                {
                    "params": [shard for n, shard in self.shards.items() if n in decaying],
                    "weight_decay": config.weight_decay,
                },
                {
                    "params": [shard for n, shard in self.shards.items() if n not in decaying],
                    "weight_decay": 0.0,
                },
            ],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            fused=True,
        )
        for shard in self.shards.values():
            # as AdamW itself would at its first step: a fresh optimizer can be filled in place
            self.state[shard] = {
                "step": torch.zeros((), dtype=torch.float32, device=shard.device),
                "exp_avg": torch.zeros_like(shard),
                "exp_avg_sq": torch.zeros_like(shard),
            }

    def update(self, *, rate: float) -> None:
        """One step at this learning rate with the model's gradients, which are then dropped."""
        for group in self.param_groups:
            group["lr"] = rate
        for name, weight in self.weights.items():
            self.shards[name].grad = None if weight.grad is None else local_shard(weight.grad)
            weight.grad = None
        self.step()
        self.zero_grad()

    def set_finished_steps(self, steps: int) -> None:
        """The step count of the bias correction: one number for all parameters."""
        for state in self.state.values():
            state["step"].fill_(float(steps))

    def tensors(self) -> dict[str, Tensor]:
        """Weights and both moments by their names in a checkpoint, sharded as the weights are."""
        tensors: dict[str, Tensor] = {}
        for name, weight in self.weights.items():
            state = self.state[self.shards[name]]
            tensors[f"model.{name}"] = weight.detach()
            tensors[f"optimizer.exp_avg.{name}"] = _sharded_like(weight, state["exp_avg"])
            tensors[f"optimizer.exp_avg_sq.{name}"] = _sharded_like(weight, state["exp_avg_sq"])
        return tensors


def decays(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies to this parameter."""
    return parameter.dim() > 1 and "embedding" not in name.split(".")


def _sharded_like(weight: Tensor, shard: Tensor) -> Tensor:
    if not isinstance(weight, DTensor):
        return shard
    return DTensor.from_local(
        shard,
        weight.device_mesh,
        weight.placements,
        run_check=False,
        shape=weight.shape,
        stride=weight.stride(),
    )
