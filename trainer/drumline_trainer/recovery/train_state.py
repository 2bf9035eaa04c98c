"""The training state beside tensors: the data cursor, loss, loss scale, configuration.

All randomness of a run is a function of the seed and of counters (initial weights by name and
index, samples by cursor, masks by step), so these are the whole state of its generators.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from drumline_contract import RestoreTier
from drumline_contract.config import TrainerConfig
from drumline_contract.config.saved import changed_settings
from drumline_contract.layout import Layout
from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.data.dataset import Dataset
from drumline_trainer.metrics.reporter import RunReporter
from drumline_trainer.optimization.gradient_clipping import StepTotals
from drumline_trainer.optimization.learning_rate import changed_rate
from drumline_trainer.optimization.loss_scale import LossScale
from drumline_trainer.recovery.saved_state import saved_cursor, saved_loss_scale
from drumline_trainer.recovery.tiered_checkpointer import StartingPoint


def trainer_state(
    cursor: int, totals: StepTotals, scale: LossScale, *, config: TrainerConfig, dataset: Dataset
) -> dict[str, Any]:
    """Return JSON values, the same on every rank.

    Args:
        cursor: samples that were trained.
        totals: sums since the last logged step.
        scale: state of the loss scale.
        config: the run's configuration.
        dataset: identifies the text.
    """
    state: dict[str, Any] = {
        "cursor": cursor,
        "seed": config.seed,
        "loss": totals.loss if math.isfinite(totals.loss) else None,
        "loss_scale": scale.state(),
        "data": dataset.fingerprint(),
        "config": config.to_dict(),
    }
    if classes := dataset.class_names():
        state["classes"] = list(classes)
    if config.has_base:
        from drumline_trainer.adapters.base import base_description  # noqa: PLC0415 - reads foreign files

        state["base"] = base_description(config)
    return state


def data_cursor_of(start: StartingPoint) -> int:
    """Return the data cursor: the number of samples consumed so far.

    Raises:
        CorruptCheckpointError: it is not valid.
    """
    with _of_step(start):
        return saved_cursor(start.trainer)


def loss_scale_of(start: StartingPoint, *, config: TrainerConfig) -> LossScale:
    """Return the loss scale of the next step.

    Raises:
        CorruptCheckpointError: it is not valid.
    """
    with _of_step(start):
        return saved_loss_scale(start.trainer, config=config)


@contextmanager
def _of_step(start: StartingPoint) -> Generator[None]:
    """Add the step to the error of a damaged state."""
    try:
        yield
    except CorruptCheckpointError as error:
        raise CorruptCheckpointError(f"step {start.step}: {error}") from error


def _remarks(config: TrainerConfig, layout: Layout) -> Iterator[str]:
    """Yield remarks on settings that probably do not do what was meant."""
    warmup = config.optimizer.warmup_steps
    if warmup > config.steps:
        yield (
            "the learning rate rises until the end and never reaches its peak:"
            f" optimizer.warmup_steps is {warmup}, steps is {config.steps}"
        )
    if config.parallelism.local_sgd is not None and layout.replicate == 1:
        yield (
            "parallelism.local_sgd: there is one copy of the model, which meets no other, and its"
            " outer step alone changes what it learns; set parallelism.replicate (fsdp), train on"
            " more ranks (ddp), or leave local_sgd out"
        )


def _epochs(config: TrainerConfig, dataset: Dataset) -> Iterator[str]:
    if config.epochs is not None:
        yield (
            f"data: {config.epochs:g} epochs of {dataset.epoch_samples} samples each are"
            f" {config.steps} steps of {config.global_batch_size}"
        )


def report_start(
    start: StartingPoint,
    *,
    config: TrainerConfig,
    layout: Layout,
    dataset: Dataset,
    reporter: RunReporter,
) -> None:
    """Report where training continues, and whether the samples are still the same text.

    Args:
        start: where training continues.
        config: the run's configuration.
        layout: degrees of parallelism.
        dataset: compared with that of the checkpoint.
        reporter: prints and records.
    """
    saved = start.trainer
    for note in (*dataset.notes(), *_epochs(config, dataset), *_remarks(config, layout)):
        reporter.print_line(note)
    reporter.begin(
        start.step,
        tier=start.tier,
        loss=saved.get("loss"),
        unwritten=saved.get("losses", ()),
    )
    if start.tier is RestoreTier.INITIAL:
        for line in dataset.examples:  # once in the life of a run, before its first step
            reporter.print_line(line)
        return
    if start.tier is RestoreTier.STORAGE:
        reporter.checkpointed(step=start.step, digest=start.digest, seconds=None)
    reporter.print_line(f"restored step {start.step} ({start.digest[:12] or start.tier})")
    same_text = saved.get("data") == dataset.fingerprint()
    if saved.get("seed") != config.seed or not same_text:
        reporter.print_line("the text or the seed changed: samples before and after may overlap")
    if changed := changed_settings(saved, config):
        reporter.print_line(f"other settings than the checkpoint's: {changed}")
    if changed := changed_rate(saved, config, step=start.step):
        reporter.print_line(changed)
    if start.step >= config.steps:
        reporter.print_line(f"nothing is left to train: steps is {config.steps}")
