"""The training loop of one rank.

The process group is initialized (`rank`); everything that must be equal on all ranks follows from
the configuration and, after a restore, from the checkpoint. The same ranks on the same machine give
bitwise the same losses and weights, killed and resumed or not; another number of ranks gives the
same losses up to the rounding of sums.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from drumline_trainer.config import TrainerConfig
from drumline_trainer.contract import RestoreTier
from drumline_trainer.data.batches import Dataset
from drumline_trainer.data.opening import open_dataset
from drumline_trainer.heartbeat import Phase
from drumline_trainer.metrics.reporter import Reporter
from drumline_trainer.models.initialize import initialize
from drumline_trainer.models.llama import Llama, build_on_meta, next_token_loss
from drumline_trainer.optimization.adamw import ShardedAdamW
from drumline_trainer.optimization.gradients import Totals, clip_and_total
from drumline_trainer.optimization.schedule import learning_rate
from drumline_trainer.parallelism.fsdp import reduce_gradients, shard_model
from drumline_trainer.parallelism.mesh import build_mesh
from drumline_trainer.parallelism.slices import slices_of, take_gradients
from drumline_trainer.randomness import reseed
from drumline_trainer.recovery.savepoints import SavePoints
from drumline_trainer.recovery.state import announce, cursor_of, trainer_state


class NonFiniteLossError(ArithmeticError):
    """The weights are still those before the step, and no later checkpoint exists."""


def train(
    config: TrainerConfig, *, device: torch.device, reporter: Reporter, savepoints: SavePoints
) -> None:
    """Train from the best saved state, or from the initial weights, to `config.steps`.

    Raises:
        ConfigError: the configuration cannot work here (data, world size, model of a checkpoint).
        CheckpointError: see `checkpoint.errors`.
        NonFiniteLossError: the loss or the gradient is infinite or not a number.
        PreemptedError: a notice asked to save and leave.
        InterruptedByAgentError: the agent has ended this membership.
    """
    placement = reporter.placement
    config.check_world_size(placement.world_size)
    reporter.enter(Phase.STARTING)
    dataset = open_dataset(config.data, seed=config.seed)

    mesh = build_mesh(device=device, world_size=placement.world_size)
    model = build_on_meta(config.model)
    shard_model(model, mesh=mesh, precision=config.precision)
    model.to_empty(device=device)
    optimizer = ShardedAdamW(slices_of(model), config.optimizer)

    reporter.enter(Phase.RESTORING)
    start = savepoints.restore(optimizer.slices())
    if start.tier is RestoreTier.INITIAL:
        initialize(model, seed=config.seed)
    optimizer.set_finished_steps(start.step)
    cursor = cursor_of(start)
    announce(start, config=config, dataset=dataset, reporter=reporter)

    for step in range(start.step, config.steps):
        savepoints.check_membership()
        reseed(config.seed, step=step, rank=placement.rank)
        local_loss = forward_backward(
            model, dataset, cursor, config=config, device=device, reporter=reporter
        )
        cursor += config.global_batch_size

        reporter.enter(Phase.OPTIMIZER)
        totals = clip_and_total(
            model,
            local_loss,
            mesh=mesh,
            max_norm=config.optimizer.max_gradient_norm,
            vote=savepoints.vote,
        )
        refuse_non_finite(totals, step=step + 1)
        rate = learning_rate(step, total_steps=config.steps, config=config.optimizer)
        optimizer.update(take_gradients(model), rate=rate)
        reporter.finish_step(step + 1, loss=totals.loss, gradient_norm=totals.gradient_norm)

        if savepoints.due(step + 1, votes=totals.votes):
            state = trainer_state(cursor, totals, config=config, dataset=dataset)
            savepoints.save(step + 1, trainer=state)
    reporter.done()


def forward_backward(
    model: Llama,
    dataset: Dataset,
    cursor: int,
    *,
    config: TrainerConfig,
    device: torch.device,
    reporter: Reporter,
) -> Tensor:
    """Gradients of this rank's share of the global batch at `cursor`, and its mean loss.

    Shapes: B samples of a micro-batch, S sequence, V vocabulary.
    """
    placement = reporter.placement
    micro_batches = dataset.micro_batches(
        cursor,
        batch=config.global_batch_size,
        rank=placement.rank,
        world_size=placement.world_size,
        size=config.micro_batch_size,
    )
    share = config.global_batch_size // placement.world_size
    mean_loss = torch.zeros((), device=device)
    for number, samples in enumerate(micro_batches):
        reporter.enter(Phase.DATA, micro_batch=number)
        inputs_BS, targets_BS = load_batch(dataset, samples, device=device)

        reporter.enter(Phase.FORWARD)
        logits_BSV = model(inputs_BS)
        loss = next_token_loss(logits_BSV, targets_BS) * (len(samples) / share)

        reporter.enter(Phase.BACKWARD)
        reduce_gradients(model, now=number == len(micro_batches) - 1)
        loss.backward()
        mean_loss += loss.detach()
    return mean_loss


def load_batch(dataset: Dataset, samples: range, *, device: torch.device) -> tuple[Tensor, Tensor]:
    """Inputs and targets of these samples, shape B S each."""
    batch = dataset.batch(samples)
    inputs, targets = torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)
    return inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)


def refuse_non_finite(totals: Totals, *, step: int) -> None:
    """End the run before the optimizer spreads what is not a number over all weights."""
    if not (math.isfinite(totals.loss) and math.isfinite(totals.gradient_norm)):
        raise NonFiniteLossError(
            f"step {step}: the loss is {totals.loss} and the gradient norm {totals.gradient_norm};"
            " lower optimizer.learning_rate or optimizer.max_gradient_norm, or look at the data of"
            " this step"
        )
