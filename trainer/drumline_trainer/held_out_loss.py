"""The mean loss over samples that are not trained on.

Forward passes alone, without dropout, by the layout and the micro-batches that train. The weights,
the randomness of the steps and the data cursor stay as they are: a run with evaluation trains the
same bits as one without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from drumline_agent.rank_protocol.heartbeat import Phase
from drumline_agent.rank_protocol.messages import PromptsContinued
from drumline_contract import prompt_answers
from drumline_contract.layout import Axis
from drumline_trainer.assembly.parallel_model import ParallelModel
from drumline_trainer.data.held_out import HeldOutDataset
from drumline_trainer.metrics.evaluation_record import EvaluationRecord
from drumline_trainer.metrics.reporter import RunReporter
from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.optimization.average import WeightAverage
from drumline_trainer.optimization.optimizer import Optimizer
from drumline_trainer.parallelism.batch_shard import BatchShard, StepBatch
from drumline_trainer.prompt_answers import PromptAnswers
from drumline_trainer.sharding.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutLoss:
    """The evaluation of a membership."""

    every_steps: int
    last_step: int
    samples: int
    targets: int
    """Number of targets in the batches of all ranks."""
    batches: tuple[StepBatch, ...]
    """This rank's share, read once; none where the run does not evaluate."""
    world: World
    model: ParallelModel
    reporter: RunReporter
    check_membership: Callable[[], None]
    """Raises where the membership has ended: an abort ends waits without an error."""
    average: WeightAverage | None
    """Measured in the weights' place; None: the weights are."""
    prompts: PromptAnswers | None
    """Continued after each measurement; None: the run has none."""

    @classmethod
    def of(
        cls,
        dataset: HeldOutDataset | None,
        *,
        shard: BatchShard,
        model: ParallelModel,
        world: World,
        reporter: RunReporter,
        optimizer: Optimizer,
        check_membership: Callable[[], None],
    ) -> HeldOutLoss:
        """Read the held-out samples, divided like `shard`'s training data.

        Args:
            dataset: held-out samples. None: no evaluation.
            shard: this rank's share of a batch.
            model: the model as assembled.
            world: process groups of this rank.
            reporter: prints and records figures.
            optimizer: holds the averaged weights.
            check_membership: raises if the membership has ended.
        """
        config, count = reporter.config, 0 if dataset is None else dataset.count
        # The batches are read once and kept: every evaluation measures the same samples.
        batches: tuple[StepBatch, ...] = ()
        if dataset is not None:
            # Batches have the size of training batches, so compiled kernels and pipelines fit.
            own = replace(shard, dataset=dataset)
            batches = tuple(own.load(cursor) for cursor in range(0, count, own.batch))
        averaged = config.evaluation is not None and config.evaluation.average
        asks = config.evaluation is not None and config.evaluation.prompts is not None
        return cls(
            every_steps=1 if config.evaluation is None else config.evaluation.every_steps,
            last_step=config.steps,
            samples=count,
            # Targets of all ranks are counted from the table, without a message.
            targets=sum(batch.targets for batch in batches),
            batches=batches,
            world=world,
            model=model,
            reporter=reporter,
            check_membership=check_membership,
            average=optimizer if averaged and isinstance(optimizer, WeightAverage) else None,
            prompts=PromptAnswers.of(config, device=world.device) if asks else None,
        )

    def after(self, step: int) -> float | None:
        """Measure and report the loss if it is due after `step` finished steps. Collective.

        Return None if it is not due. Every rank returns the same bits.
        """
        # The condition depends on the step only, so all ranks enter the collectives together.
        if not self.batches or (step % self.every_steps and step != self.last_step):
            return None
        # Step times would otherwise contain the evaluation.
        with self.reporter.excluded_from_step_time():
            self.reporter.enter(Phase.EVALUATION)
            loss = self._measured() if self.average is None else self._averaged(self.average)
            # An abort ends collectives without an error. The loss would be a partial sum.
            self.check_membership()
            record = EvaluationRecord(
                step=step,
                loss=loss,
                samples=self.samples,
                targets=self.targets,
                answers=self._answers(),
            )
            for line in (record.line, *record.answer_lines):
                self.reporter.print_line(line)
            self.reporter.instruments.publish(record)
            if record.answers and self.reporter.placement.rank == 0:
                answers = prompt_answers.encode(step, record.answers)
                self.reporter.send_event(PromptsContinued(answers=answers))
        return loss

    def _answers(self) -> tuple[tuple[str, str], ...]:
        """Return the continued prompts; gathered copies are dropped afterwards."""
        if self.prompts is None:
            return ()
        # Prompts exclude pipelines, so there is one stage.
        (model,) = self.model.stages
        model.eval()
        pairs: list[tuple[str, str]] = []
        for pair in self.prompts.answers(model):
            pairs.append(pair)
            self.reporter.progressed()
        model.train()
        self.model.weights.refresh_copies()
        return tuple(pairs)

    def _averaged(self, average: WeightAverage) -> float:
        """Return the loss of the averaged weights, which replace the weights meanwhile."""
        # The optimizer swaps the average into the slices, and the copies for computing follow.
        with average.as_weights():
            self.model.weights.refresh_copies()
            loss = self._measured()
        # Once more after the swap back, or training would go forward with the average.
        self.model.weights.refresh_copies()
        return loss

    @torch.no_grad()
    def _measured(self) -> float:
        """Return the mean loss over all targets of all ranks."""
        # fp64: a sum over millions of tokens keeps the digits by which early stopping decides.
        total = torch.zeros((), dtype=torch.float64, device=self.world.device)
        # Only dropout differs in evaluation. No random number is drawn, so the steps draw the same
        # ones.
        for stage in self.model.stages:
            stage.eval()
        for micro_batch in (part for batch in self.batches for part in batch.micro_batches):
            inputs_BS, targets_BS, documents = micro_batch.on(self.world.device)
            total += self.model.held_out_loss(inputs_BS, targets_BS, documents)
            self.reporter.progressed()
        for stage in self.model.stages:
            stage.train()
        # The division precedes the sum, so that each loss counts once.
        total /= self.world.size(Axis.TENSOR)  # whose ranks all have the same part
        if self.world.layout.world_size > 1:
            with step_part("all_reduce", "world"):
                dist.all_reduce(total, group=self.world.everyone)
        return float(total) / self.targets
