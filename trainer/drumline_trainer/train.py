"""The training loop of one rank.

The process group is initialized (`rank`); everything that must be equal on all ranks follows from
the configuration and, after a restore, from the checkpoint. The same ranks on the same machine give
bitwise the same losses and weights, killed and resumed or not; another number of ranks gives the
same losses up to the rounding of sums.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from drumline_trainer.checkpoint.checkpointer import Checkpointer
from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.checkpoint.restore import Restored
from drumline_trainer.config import TrainerConfig
from drumline_trainer.data.batches import ByteDataset, open_dataset
from drumline_trainer.heartbeat import Phase
from drumline_trainer.metrics.reporter import Reporter
from drumline_trainer.models.initialize import initialize
from drumline_trainer.models.llama import build_on_meta, next_token_loss
from drumline_trainer.optimization.adamw import (
    build_optimizer,
    set_finished_steps,
    set_learning_rate,
    training_tensors,
)
from drumline_trainer.optimization.gradients import clip_and_reduce_loss
from drumline_trainer.optimization.schedule import learning_rate
from drumline_trainer.parallelism.fsdp import shard_model
from drumline_trainer.parallelism.mesh import build_mesh
from drumline_trainer.placement import Placement
from drumline_trainer.recovery.control import Control


def train(
    config: TrainerConfig,
    *,
    placement: Placement,
    device: torch.device,
    reporter: Reporter,
    control: Control | None = None,
) -> None:
    """Train from the newest checkpoint, or from the initial weights, to `config.steps`.

    Shapes: B this rank's share of the global batch, S sequence, V vocabulary.

    Raises:
        ConfigError: the configuration cannot work here (data, world size, model of a checkpoint).
        CheckpointError: see `checkpoint.errors`.
    """
    config.check_world_size(placement.world_size)
    reporter.enter(Phase.STARTING)
    dataset = open_dataset(config.data, seed=config.seed)

    mesh = build_mesh(device=device, world_size=placement.world_size)
    model = build_on_meta(config.model)
    shard_model(model, mesh=mesh, precision=config.precision)
    model.to_empty(device=device)
    optimizer = build_optimizer(model, config.optimizer)

    reporter.enter(Phase.RESTORING)
    tensors = training_tensors(model, optimizer)
    checkpoints = Checkpointer.open(placement, keep=config.checkpoint.keep, device=device)
    restored = checkpoints.restore(tensors, placement=placement) if checkpoints else None
    if restored is None:
        initialize(model, seed=config.seed)
        finished, cursor = 0, 0
    else:
        finished, cursor = restored.step, cursor_of(restored)
        set_finished_steps(optimizer, finished)
        announce(restored, config=config, dataset=dataset, reporter=reporter)

    reporter.begin(finished)
    for step in range(finished, config.steps):
        if control is not None:
            control.check(placement.membership)
        reporter.enter(Phase.DATA)
        inputs_BS, targets_BS = load_batch(
            dataset, cursor, config=config, placement=placement, device=device
        )
        cursor += config.global_batch_size

        reporter.enter(Phase.FORWARD)
        logits_BSV = model(inputs_BS)
        local_loss = next_token_loss(logits_BSV, targets_BS)

        reporter.enter(Phase.BACKWARD)
        local_loss.backward()

        reporter.enter(Phase.OPTIMIZER)
        loss, _ = clip_and_reduce_loss(
            model, local_loss, mesh=mesh, max_norm=config.optimizer.max_gradient_norm
        )
        rate = learning_rate(step, total_steps=config.steps, config=config.optimizer)
        set_learning_rate(optimizer, rate)
        optimizer.step()
        optimizer.zero_grad()
        reporter.finish_step(step + 1, loss)

        if checkpoints and checkpoint_due(step + 1, config=config):
            reporter.enter(Phase.CHECKPOINT)
            state = trainer_state(cursor, loss, config=config, dataset=dataset)
            saved = checkpoints.save(step=step + 1, tensors=tensors, trainer=state)
            reporter.checkpointed(step=saved.step, digest=saved.digest, seconds=saved.seconds)
    reporter.done()


def load_batch(
    dataset: ByteDataset,
    cursor: int,
    *,
    config: TrainerConfig,
    placement: Placement,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """This rank's inputs and targets of the global batch at `cursor`, shape B S each."""
    samples = dataset.rank_samples(
        cursor,
        batch=config.global_batch_size,
        rank=placement.rank,
        world_size=placement.world_size,
    )
    tokens = torch.from_numpy(dataset.tokens(samples)).to(device, non_blocking=True)
    return tokens[:, :-1], tokens[:, 1:]


def checkpoint_due(step: int, *, config: TrainerConfig) -> bool:
    """Every n steps and after the last one."""
    return step % config.checkpoint.every_steps == 0 or step == config.steps


def trainer_state(
    cursor: int, loss: Tensor, *, config: TrainerConfig, dataset: ByteDataset
) -> dict[str, Any]:
    """What a checkpoint holds beside tensors.

    All randomness of a run is counter based (initial weights by name and index, samples by cursor),
    so seed and cursor are the whole state of its random number generators.
    """
    value = float(loss)
    return {
        "cursor": cursor,
        "seed": config.seed,
        "loss": value if math.isfinite(value) else None,
        "data": dataset.corpus.fingerprint(),
        "config": config.to_dict(),
    }


def cursor_of(restored: Restored) -> int:
    """Samples consumed so far.

    Raises:
        CorruptCheckpointError: the checkpoint is intact but was written by something else.
    """
    cursor = restored.trainer.get("cursor")
    if not isinstance(cursor, int) or cursor < 0:
        raise CorruptCheckpointError(f"step {restored.step}: cursor {cursor!r} counts no samples")
    return cursor


def announce(
    restored: Restored, *, config: TrainerConfig, dataset: ByteDataset, reporter: Reporter
) -> None:
    """Say where training goes on, and whether the samples still mean the same text."""
    reporter.step, reporter.loss = restored.step, restored.trainer.get("loss")
    reporter.checkpointed(step=restored.step, digest=restored.digest, seconds=None)
    reporter.say(f"restored step {restored.step} ({restored.digest[:12]})")
    same_text = restored.trainer.get("data") == dataset.corpus.fingerprint()
    if restored.trainer.get("seed") != config.seed or not same_text:
        reporter.say("the text or the seed changed: samples before and after may overlap")
