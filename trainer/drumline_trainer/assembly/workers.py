"""Workers: parts of a run that make their steps without waiting for each other.

Mostly there is a single worker, the whole run, and nothing here does anything. With local SGD each
copy of the model is a worker, with asynchronous parameter servers each node of copies: a world of
its own with its part of the global batch, in which gradients, norms and votes are summed as usual.
All ranks synchronize every `meets_every_steps` steps; only then losses are those of the whole batch
and checkpoints are saved.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from drumline_contract.config import TrainerConfig
from drumline_contract.layout import Axis
from drumline_contract.layout_validation import worker_layout
from drumline_contract.step_figures.step_record import Staleness
from drumline_trainer.assembly.optimizer import build_optimizer
from drumline_trainer.assembly.parallel_model import ParallelModel
from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.optimization.gradient_clipping import StepTotals
from drumline_trainer.optimization.optimizer import Optimizer
from drumline_trainer.parallelism.data_parallel.local_sgd import LocalSgd
from drumline_trainer.parallelism.data_parallel.parameter_server.asynchronous import (
    AsynchronousServers,
)
from drumline_trainer.sharding.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class SynchronizedStep:
    """State after a synchronization, with the same bits on all ranks."""

    totals: StepTotals
    """Totals of the last step. The norm is the mean of the workers'."""
    losses: dict[int, float]
    """Mean loss over the global batch for every step since the last synchronization."""
    staleness: Staleness | None = None
    """Staleness of the weights that gradients were computed from. None: they are never stale."""


@dataclass(slots=True, kw_only=True)
class Workers:
    """The worker that this rank is part of, and the whole run."""

    config: TrainerConfig
    """Configuration of one worker, as if it were the whole run."""
    world: World
    """World of one worker."""
    whole: World
    count: int = 1
    _asynchronous: AsynchronousServers | None = None
    _losses: dict[int, float] = field(default_factory=dict[int, float])

    @classmethod
    def of(cls, config: TrainerConfig, world: World) -> Workers:
        """Build the worker of this rank, from the configuration. Collective."""
        layout, own = worker_layout(world.layout, config)
        # The same object means one worker: nothing is split, and no further groups are made.
        if own is config:
            return cls(config=config, world=world, whole=world)
        return cls(
            config=own,
            # Neighbours along the replicate axis make a worker. Collective over all ranks.
            world=world.subworld(layout.replicate),
            whole=world,
            count=world.layout.replicate // layout.replicate,
        )

    def optimizer(self, parallel_model: ParallelModel) -> Optimizer:
        """Return the optimizer of this worker's model. Collective."""
        config, degrees = self.config, self.config.parallelism
        slices = parallel_model.slices
        # Asynchronous servers keep the state of the optimizer on the servers, so no optimizer is
        # built here.
        if degrees.asynchronous:
            self._asynchronous = AsynchronousServers(
                slices,
                config,
                build=functools.partial(build_optimizer, config=config.optimizer, world=self.world),
                whole=self.whole,
                worker=self.world,
            )
            return self._asynchronous
        # Local SGD wraps the optimizer of a worker and averages weights over the copies.
        inner = build_optimizer(slices, config.optimizer, self.world, memory=config.memory)
        if degrees.local_sgd is None:
            return inner
        return LocalSgd(
            inner,
            slices,
            degrees.local_sgd,
            copies=self.whole.group(Axis.REPLICATE),
            steps=config.steps,
        )

    def synchronize(self, step: int, totals: StepTotals) -> SynchronizedStep | None:
        """Return what all ranks know of a step, or None between two synchronizations."""
        # One worker: its totals are those of the run already.
        if self.world is self.whole:
            return SynchronizedStep(totals=totals, losses={step: totals.loss})
        self._losses[step] = totals.loss
        # The last step always synchronizes, so the final checkpoint has weights that all workers
        # share.
        if step % self.config.meets_every_steps and step != self.config.steps:
            return None
        # Votes are multiplied by the number of workers, because the division below gives means.
        own = [*self._losses.values(), totals.gradient_norm, float(totals.votes * self.count)]
        # One message for losses, norm and votes. fp64 keeps votes exact.
        sums = torch.tensor(own, dtype=torch.float64).to(self.whole.device, non_blocking=True)
        with step_part("all_reduce", "world"):
            dist.all_reduce(sums)  # all ranks of a worker have the same values
        # Every rank of a worker has the same numbers, so the mean over ranks is that over workers.
        means: list[float] = (sums / self.whole.layout.world_size).tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - torch says only list
        *losses, norm, votes = means
        known = dict(zip(self._losses, losses, strict=True))
        self._losses.clear()
        # Finite or not is a matter of each worker, which skipped its step on its own.
        return SynchronizedStep(
            totals=StepTotals(
                loss=known[step],
                gradient_norm=norm,
                votes=round(votes),
                non_finite=totals.non_finite,
            ),
            losses=known,
            staleness=self._staleness(len(known)),
        )

    def finish(self) -> None:
        """End the exchange after the last step, even if there was none."""
        if self._asynchronous is not None:
            self._asynchronous.leave()

    def _staleness(self, steps: int) -> Staleness:
        """Return the staleness of the last `steps`.

        Independent copies miss all updates of the others.
        """
        if self._asynchronous is not None:
            return self._asynchronous.staleness()
        # Between two synchronizations a copy misses 0 to `steps` - 1 updates of each other copy.
        lacked = (self.count - 1) * (steps - 1)
        return Staleness(mean=lacked / 2, most=lacked, steps_ahead=0)
