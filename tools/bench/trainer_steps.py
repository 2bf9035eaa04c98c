"""A step of our trainer beside one of the plain script: the same processes, in turns.

Ours is `drumline_trainer.train.train` itself, which calls `after_step` after each of its steps:
there the plain script takes its turn. Both start from the same weights and see the same samples, so
their losses say whether they do the same work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig, merge
from drumline_trainer.data.cursor import rank_samples
from drumline_trainer.data.sources import open_dataset
from drumline_trainer.metrics.reporter import RunReporter
from drumline_trainer.models.initialize import initialize_slices
from drumline_trainer.optimization.learning_rate import learning_rate
from drumline_trainer.recovery.rendezvous import join
from drumline_trainer.recovery.tiered_checkpointer import TieredCheckpointer
from drumline_trainer.sharding.slices import slices_of
from drumline_trainer.train import train
from tools.bench import trainer_plain as plain

CPU = torch.device("cpu")
WARM_UP = 2
"""Steps of either side that are not counted."""
COMPARED = 5
"""Steps whose losses must agree."""
LOSS_TOLERANCE = 1e-5
"""How far, relatively, they may be apart where both sides do the same work."""
PARALLELISM: dict[str, dict[str, Any]] = {
    "fsdp": {"data_parallel": "fsdp"},
    "ddp": {"data_parallel": "ddp"},
    "tp": {"tensor": 2},
}
MODEL = {
    "vocab_size": 512,
    "layers": 8,
    "hidden_size": 256,
    "ffn_size": 704,
    "heads": 8,
    "kv_heads": 4,
    "tied_embeddings": False,
}
TOY = {
    "vocab_size": 256,
    "layers": 2,
    "hidden_size": 32,
    "ffn_size": 80,
    "heads": 4,
    "kv_heads": 1,
    "tied_embeddings": False,
}
"""37,000 weights: what a step costs besides the model is a large share."""
LENGTH = 256
SAMPLES = 4
"""Of a global batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What rank 0 measured: seconds of each step, in turns, and how far the losses are apart."""

    ours: list[float]
    theirs: list[float]
    losses: list[tuple[float, float]]
    """Of the same step, ours and theirs."""

    @property
    def ratio(self) -> float:
        """How fast ours is, 1 for as fast."""
        return median(self.theirs) / median(self.ours)

    @property
    def loss_error(self) -> float:
        """The largest relative difference in the first steps; nan where a loss is none.

        Later ones say little: training multiplies what sums in another order differ by.
        """
        first = self.losses[:COMPARED]
        return float(torch.tensor([ours / theirs - 1 for ours, theirs in first]).abs().max())


def config_of(
    layout: str, *, source: Path, steps: int, model: Mapping[str, Any] = MODEL
) -> TrainerConfig:
    """Of our side."""
    raw = {
        "model": dict(model),
        "data": {"sequence_length": LENGTH, "source": str(source)},
        "steps": steps,
        "global_batch_size": SAMPLES,
        "log_every_steps": 10,
    }
    return TrainerConfig.from_dict(merge(raw, {"parallelism": PARALLELISM[layout]}))


class OtherSide(Protocol):
    """What our steps are measured beside."""

    losses: list[float]

    def turn(self, step: int) -> float:
        """Seconds of one step."""
        ...


def beside(placement: Placement, layout: str, config: TrainerConfig) -> Beside:
    """Train ours and the plain script, in turns. On every rank; the job of a pool."""
    return in_turns(placement, config, lambda: PlainRun(layout, config, placement))


def busy_beside(placement: Placement, layout: str, config: TrainerConfig) -> Beside:
    """Do as `beside` in processor time of a rank, which another load changes little."""
    clock = time.process_time
    run = partial(PlainRun, layout, config, placement, clock=clock)
    return in_turns(placement, config, run, clock=clock)


def in_turns(
    placement: Placement,
    config: TrainerConfig,
    other: Callable[[], OtherSide],
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Beside:
    """Train ours and the other side, which is made once the ranks have met."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    join(placement, device=CPU)
    turns = Turns(reporter=_reporter(config, placement), other=other(), clock=clock)
    with TieredCheckpointer(
        config=config, placement=placement, device=CPU, reporter=turns.reporter
    ) as checkpointer:
        train(
            config,
            device=CPU,
            reporter=turns.reporter,
            checkpointer=checkpointer,
            after_step=turns.after_step,
        )
    dist.destroy_process_group()
    return Beside(
        ours=turns.ours[WARM_UP:],
        theirs=turns.theirs[WARM_UP:],
        losses=list(zip(turns.losses, turns.other.losses, strict=False)),
    )


class PlainRun:
    """The plain script's side: its model and its samples, which are there before their time."""

    def __init__(
        self,
        layout: str,
        config: TrainerConfig,
        placement: Placement,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.clock = clock
        model = plain.PlainDecoder(config.model, length=config.data.sequence_length)
        learning = dict(model.named_parameters())  # unlike the rotary tables, which are made
        weights = [part for part in slices_of(model) if part.name in learning]
        initialize_slices(weights, config=config.model, seed=config.seed)
        self.config = config
        self.step = plain.STEPS[layout](model, config.optimizer)
        self.shares = 1 if layout == "tp" else placement.world_size
        self.share = 0 if layout == "tp" else placement.rank
        self.dataset = open_dataset(config.data, seed=config.seed)
        self.losses: list[float] = []

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Of this rank."""
        size = self.config.global_batch_size
        batch = self.dataset.batch(
            rank_samples(step * size, batch=size, rank=self.share, world_size=self.shares)
        )
        return torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)

    def turn(self, step: int) -> float:
        """Seconds of one step."""
        inputs, targets = self.batch(step)
        rate = learning_rate(step, self.config)
        torch.use_deterministic_algorithms(False)
        dist.barrier()
        began = self.clock()
        loss = self.step(inputs, targets, rate)
        dist.barrier()
        seconds = self.clock() - began
        torch.use_deterministic_algorithms(True)
        loss = plain.whole(loss)
        dist.all_reduce(loss)
        self.losses.append(loss.item() / dist.get_world_size())
        return seconds


@dataclass(kw_only=True)
class Turns:
    """After each step of ours it is the other's turn."""

    reporter: RunReporter
    other: OtherSide
    clock: Callable[[], float]
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    _began: float | None = None

    def after_step(self) -> None:
        """Its loss is known; when the first began is not."""
        if self._began is not None:
            dist.barrier()
            self.ours.append(self.clock() - self._began)
        assert self.reporter.figures.loss is not None
        self.losses.append(self.reporter.figures.loss)
        self.theirs.append(self.other.turn(len(self.theirs)))
        dist.barrier()
        self._began = self.clock()


def _reporter(config: TrainerConfig, placement: Placement) -> RunReporter:
    """As `rank` makes it, silent."""
    return RunReporter(
        config=config,
        placement=placement,
        heartbeats=None,
        write=lambda _: None,
        losses_file=None,
        peak_flops=None,
    )
