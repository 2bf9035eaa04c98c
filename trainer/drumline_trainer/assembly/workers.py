"""Workers: parts of a run that make their steps without waiting for each other.

Mostly there is one, the whole run, and nothing here does anything. With local SGD each copy of the
model is a worker, with asynchronous parameter servers each node of copies: a world of its own with
a share of the global batch, in which gradients, norms and votes are summed as ever. All ranks meet
every `meets_every_steps` steps; only there losses are those of the whole batch and anything is
saved.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from drumline_trainer.assembly.assemble import Trainee
from drumline_trainer.assembly.optimizer import Optimizer, build_optimizer
from drumline_trainer.config import TrainerConfig
from drumline_trainer.layout import Axis
from drumline_trainer.layout_validation import worker
from drumline_trainer.metrics.staleness import Staleness
from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.optimization.gradients import Totals
from drumline_trainer.sharding.world import World

if TYPE_CHECKING:
    from drumline_trainer.parallelism.data_parallel.parameter_server.asynchronous import (
        AsynchronousServers,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What all ranks know when they meet, bit for bit the same."""

    totals: Totals
    """Of the last step; the norm is the mean of the workers'."""
    losses: dict[int, float]
    """Of every step since the last meeting: means over the global batch."""
    staleness: Staleness | None = None
    """Of the weights that gradients were computed from; None where they are always the newest."""


@dataclass(slots=True, kw_only=True)
class Workers:
    """The worker that this rank is in, beside the others."""

    config: TrainerConfig
    """Of one worker, as if it were the whole run."""
    world: World
    """Of one worker."""
    whole: World
    count: int = 1
    _asynchronous: AsynchronousServers | None = None
    _losses: dict[int, float] = field(default_factory=dict[int, float])

    @classmethod
    def of(cls, config: TrainerConfig, world: World) -> Workers:
        """Of a configuration on these ranks. Collective."""
        layout, own = worker(world.layout, config)
        if own is config:
            return cls(config=config, world=world, whole=world)
        return cls(
            config=own,
            world=world.part(layout.replicate),
            whole=world,
            count=world.layout.replicate // layout.replicate,
        )

    def optimizer(self, trainee: Trainee) -> Optimizer:
        """What updates the slices of this worker's model. Collective."""
        degrees = self.config.parallelism
        if degrees.asynchronous:
            from drumline_trainer.parallelism.data_parallel.parameter_server.asynchronous import (  # noqa: PLC0415
                AsynchronousServers,
            )

            self._asynchronous = AsynchronousServers(
                trainee.slices, self.config, whole=self.whole, worker=self.world
            )
            return self._asynchronous
        config = self.config
        inner = build_optimizer(trainee.slices, config.optimizer, self.world, memory=config.memory)
        if degrees.local_sgd is None:
            return inner
        from drumline_trainer.parallelism.data_parallel.local_sgd import LocalSgd  # noqa: PLC0415 - one of them

        return LocalSgd(
            inner,
            trainee.slices,
            degrees.local_sgd,
            copies=self.whole.group(Axis.REPLICATE),
            steps=self.config.steps,
        )

    def meet(self, step: int, totals: Totals) -> Meeting | None:
        """After a step: what all ranks know of it, or None between two meetings."""
        if self.world is self.whole:
            return Meeting(totals=totals, losses={step: totals.loss})
        self._losses[step] = totals.loss
        if step % self.config.meets_every_steps and step != self.config.steps:
            return None
        own = [*self._losses.values(), totals.gradient_norm, float(totals.votes * self.count)]
        sums = torch.tensor(own, dtype=torch.float64, device=self.whole.device)
        with step_part("all_reduce", "world"):
            dist.all_reduce(sums)  # all ranks of a worker have the same
        *losses, norm, votes = (sums / self.whole.layout.world_size).tolist()
        known = dict(zip(self._losses, losses, strict=True))
        self._losses.clear()
        return Meeting(
            totals=Totals(
                loss=known[step],
                gradient_norm=norm,
                votes=round(votes),
                non_finite=totals.non_finite,
            ),
            losses=known,
            staleness=self._staleness(len(known)),
        )

    def leave(self) -> None:
        """Once no step is left, also where none was."""
        if self._asynchronous is not None:
            self._asynchronous.leave()

    def _staleness(self, steps: int) -> Staleness:
        """Of the last `steps`; copies that train alone lack all that the others do meanwhile."""
        if self._asynchronous is not None:
            return self._asynchronous.staleness()
        lacked = (self.count - 1) * (steps - 1)
        return Staleness(mean=lacked / 2, most=lacked, steps_ahead=0)
