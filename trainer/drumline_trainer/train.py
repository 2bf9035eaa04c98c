"""The training loop of one rank.

The process group is initialized (`rank`); everything that must be equal on all ranks follows from
the configuration and, after a restore, from the checkpoint. The same ranks on the same machine give
bitwise the same losses and weights, killed and resumed or not; another layout gives the same up to
the rounding of sums.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from typing import cast

import torch
from torch import Tensor

from drumline_agent.rank_protocol.heartbeat import Phase
from drumline_contract.config import TrainerConfig
from drumline_contract.layout import Axis
from drumline_contract.layout_validation import validated_layout
from drumline_contract.step_figures.step_record import Rewards
from drumline_trainer.adapters.lora import called_adapters
from drumline_trainer.assembly.assemble import assemble
from drumline_trainer.assembly.parallel_model import ParallelModel
from drumline_trainer.assembly.stage_plan import StagePlan
from drumline_trainer.assembly.workers import SynchronizedStep, Workers
from drumline_trainer.data.held_out import HeldOutDataset
from drumline_trainer.data.prefetch import Prefetcher
from drumline_trainer.data.run_data import open_run_data, with_steps_of_epochs
from drumline_trainer.early_stopping import EarlyStopping
from drumline_trainer.forward_backward import forward_backward
from drumline_trainer.held_out_loss import HeldOutLoss
from drumline_trainer.initial_weights import initialize_weights
from drumline_trainer.metrics.reporter import RunReporter
from drumline_trainer.models.transformers.module import CausalModule
from drumline_trainer.models.transformers.sight import check_sight
from drumline_trainer.optimization.gradient_clipping import StepTotals, clip_gradients
from drumline_trainer.optimization.learning_rate import learning_rate
from drumline_trainer.optimization.loss_scale import LossScale
from drumline_trainer.optimization.optimizer import Optimizer
from drumline_trainer.parallelism.batch_shard import BatchShard
from drumline_trainer.parallelism.tensor_parallel.replicas import check_replicas
from drumline_trainer.recovery.tiered_checkpointer import StartingPoint, TieredCheckpointer
from drumline_trainer.recovery.train_state import (
    data_cursor_of,
    loss_scale_of,
    report_start,
    trainer_state,
)
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.world import World


class NonFiniteLossError(ArithmeticError):
    """The weights are still those before the step, and no later checkpoint exists."""


def train(
    config: TrainerConfig,
    *,
    device: torch.device,
    reporter: RunReporter,
    checkpointer: TieredCheckpointer,
    after_step: Callable[[], None] = lambda: None,
) -> None:
    """Train from the best saved state, or from the initial weights, to the last step.

    Phases: assemble; restore; then for each step forward, backward, update, report, save if due.

    Args:
        config: configuration of the run.
        device: device of the rank.
        reporter: prints and records figures.
        checkpointer: restores and saves.
        after_step: called after each step.

    Raises:
        ConfigError: the configuration cannot work here (data, ranks, model of a checkpoint).
        CheckpointError: see `checkpoint.errors`.
        NonFiniteLossError: the loss or the gradient is infinite or not a number.
        PreemptedError: a notice asked to save and leave.
        InterruptedByAgentError: the agent has ended this membership.
    """
    # Phase 1: data and ranks. Errors of the configuration come before any weight is allocated.
    layout = validated_layout(config, world_size=reporter.placement.world_size)
    reporter.enter(Phase.STARTING)
    dataset, held_out = open_run_data(config)
    # Epochs become steps only now, because they depend on the number of samples.
    config = checkpointer.config = with_steps_of_epochs(config, dataset)
    # Phase 2: assemble. All of this is collective, so every rank makes the same calls in the same
    # order.
    world = World.join(layout, device=device)
    workers = Workers.of(config, world)
    # The plan needs the world, and the model needs the plan.
    plan = StagePlan.of(config, world, placement=reporter.placement)
    model = assemble(workers.config, workers.world, plan=plan)
    optimizer = workers.optimizer(model)
    shard = BatchShard.of(dataset, config=config, world=world)
    learner = Learner(workers=workers, model=model, optimizer=optimizer, reporter=reporter)
    evaluation = learner.evaluation(held_out, shard=shard, checkpointer=checkpointer)
    # The optimizer's slices include weights and moments: they are what checkpoints hold.
    kept = optimizer.slices()
    reporter.assembled(config, layout=layout, stages=model.modules, state=[p.tensor for p in kept])
    # Phase 3: restore, or fill with initial weights.
    reporter.enter(Phase.RESTORING)
    start = learner.restore(kept, checkpointer=checkpointer)
    cursor, scale = data_cursor_of(start), loss_scale_of(start, config=config)
    report_start(start, config=config, layout=layout, dataset=dataset, reporter=reporter)

    stopping = learner.stopping(start, evaluation=evaluation)
    # Each cursor is the first sample of a global batch. The prefetcher loads one batch ahead.
    cursors = range(cursor, cursor + (config.steps - start.step) * shard.batch, shard.batch)
    # Phase 4: steps. `closing` ends a read of remote data first, and then the prefetcher joins its
    # thread.
    with Prefetcher(shard.load, cursors) as batches, closing(dataset):
        for step in stopping.steps(range(start.step, config.steps)):
            # Before any random number of the step is drawn, such as dropout's.
            reseed(config.seed, step=step, rank=world.random_rank)
            loss = forward_backward(
                model, batches, device=device, scale=scale.value, reporter=reporter
            )
            # The cursor counts samples of the whole run, whatever the number of ranks.
            cursor += config.global_batch_size
            update = learner.update(loss, step=step, scale=scale, checkpointer=checkpointer)
            scale = update.scale
            # None between two synchronizations of workers. Nothing is saved or reported as the
            # run's loss then.
            known = workers.synchronize(step + 1, update.totals)
            checkpointer.check_membership()  # an abort ends waits without an error
            report_step(step + 1, update, known, reporter=reporter)
            # Evaluation follows the report of the step, so lines come in the order of the steps.
            asked = stopping.saves_after(step + 1, evaluation.after(step + 1))
            after_step()
            # All ranks decide alike: votes are a sum over all ranks, and the held-out loss has the
            # same bits everywhere.
            if known and checkpointer.due(step + 1, votes=known.totals.votes, asked=asked):
                # The state is that of the next step: its cursor, and the loss scale after this
                # update.
                saved = trainer_state(cursor, known.totals, scale, config=config, dataset=dataset)
                checkpointer.save(step + 1, trainer=saved | plan.state() | stopping.state())
    # Phase 5: end. Servers serve the workers that still train, and the last export completes.
    stopping.report(print_line=reporter.print_line)
    workers.finish()
    checkpointer.done()


def reseed(seed: int, *, step: int, rank: int) -> None:
    """Start this rank's generators for the step with this number (0-based).

    All randomness while training is a function of (seed, step, rank), so there is no state to save.
    A run that is resumed at a step draws, for dropout, the numbers that the undisturbed run drew
    there. Initial weights and the order of the samples are counter based.

    Args:
        seed: seed of the run.
        step: number of the step.
        rank: index on the data axis.
    """
    # 7 bytes fit into a signed 64-bit integer.
    digest = blake2b(f"{seed}:{step}:{rank}".encode(), digest_size=7).digest()
    number = int.from_bytes(digest, "little")
    # torch.manual_seed keeps a note with a stack trace, at every call, for each kind of device that
    # was never used
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Result of one step's update."""

    totals: StepTotals
    scale: LossScale
    """Loss scale of the next step."""
    rate: float
    """The learning rate, be the step skipped or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """The model of a run and its optimizer: restored, measured, updated step by step."""

    workers: Workers
    model: ParallelModel
    optimizer: Optimizer
    reporter: RunReporter

    def restore(
        self, kept: list[TensorSlice], *, checkpointer: TieredCheckpointer
    ) -> StartingPoint:
        """Restore the saved state, or initialize the weights. Raises like `train`."""
        config = self.workers.config
        # Phase 1: the best copy. Every rank takes the same tier.
        start = checkpointer.restore(kept)
        # Phase 2: fill the rest. Frozen weights are in no checkpoint and come from their base each
        # time.
        initialize_weights(
            self.model,
            start,
            config=config,
            device=checkpointer.device,
            progress=checkpointer.progressed,
        )
        # Skipped steps do not count: AdamW's bias correction depends on the number of updates.
        self.optimizer.set_finished_steps(start.step - loss_scale_of(start, config=config).skipped)
        # Copies in bf16 are made from the restored fp32 weights.
        self.model.weights.refresh_copies()
        # Phase 3: modules of transformers are tried out, because their code is unknown here.
        (*_, module) = self.model.stages
        if isinstance(module, CausalModule):
            words = config.model.vocab_size
            # A forward pass also shows adapters whose layer is never called.
            with called_adapters(cast("torch.nn.Module", module)):
                check_sight(module, words=words, device=checkpointer.device)
            for each in self.model.modules:  # the reference of preferences sees as the model does
                cast("CausalModule", each).documents_apart = module.documents_apart
            # The trial gathered weights. They are dropped, so that training starts like without it.
            self.model.weights.refresh_copies()
        return start

    def evaluation(
        self,
        dataset: HeldOutDataset | None,
        *,
        shard: BatchShard,
        checkpointer: TieredCheckpointer,
    ) -> HeldOutLoss:
        """Return the evaluation of the weights, or of the average that the optimizer keeps.

        Args:
            dataset: held-out samples. None: no evaluation.
            shard: this rank's share of a batch.
            checkpointer: checks the membership.
        """
        return HeldOutLoss.of(
            dataset,
            shard=shard,
            model=self.model,
            world=self.workers.whole,
            reporter=self.reporter,
            optimizer=self.optimizer,
            check_membership=checkpointer.check_membership,
        )

    def stopping(self, start: StartingPoint, *, evaluation: HeldOutLoss) -> EarlyStopping:
        """Return the state of early stopping. A new run measures the held-out loss first."""
        stopping = EarlyStopping.of(self.workers.config, start.trainer)
        # The loss of the initial weights is the baseline. A resumed run has measured it before.
        if start.step == 0:
            stopping.saves_after(0, evaluation.after(0))
        return stopping

    def update(
        self, loss: Tensor, *, step: int, scale: LossScale, checkpointer: TieredCheckpointer
    ) -> Update:
        """Update the weights after the backward passes of a step (0-based), if all is finite.

        Args:
            loss: this rank's part of the mean loss (scalar).
            step: number of the step.
            scale: loss scale of fp16.
            checkpointer: decides on saves in the step's vote.

        Raises:
            NonFiniteLossError: the loss or the gradient is not finite, and no smaller scale helps.
            InterruptedByAgentError: the membership has ended. Waits for collectives that NCCL
                aborts return without an error, and the sums are partial.
        """
        # Phase 1: gradients, summed over the ranks.
        self.reporter.enter(Phase.OPTIMIZER)
        gradients = self.model.gradients()
        self._compare_replicas(gradients)
        self.reporter.count_gradients(gradients)
        # Phase 2: norm, clipping, loss and votes in one collective, with equal results on all
        # ranks.
        totals = clip_gradients(
            self.model.slices,
            gradients,
            loss=loss,
            world=self.workers.world,
            max_norm=self.workers.config.optimizer.max_gradient_norm,
            vote=checkpointer.vote,
            scale=scale.value,
            counted=self.model.counted(),
        )
        # After an abort the sums may be partial. They must not reach the weights.
        checkpointer.check_membership()
        # Phase 3: decide. Every rank has the same totals, so all skip or none.
        scale = scale.after(finite=totals.finite)
        refuse_non_finite(totals, scale, step=step + 1)
        if not totals.finite and scale.allowance:
            self.reporter.print_line(
                f"step {step + 1} is skipped: {_not_finite(totals)}; {scale.skipped} of"
                f" {scale.allowance} that optimizer.max_skipped_steps allows"
            )
        # The rate follows the number of the step, also if steps are skipped. A resume needs no
        # state for it.
        rate = learning_rate(step, self.workers.config)
        # Phase 4: update. A skipped step leaves weights and moments as they are. Then too the copy
        # of a save must end here: averages and other workers change weights after this step.
        checkpointer.finish_copy()
        if totals.finite:
            self.optimizer.update(gradients, rate=rate)
            self.model.weights.refresh_copies()
        return Update(totals=totals, scale=scale, rate=rate)

    def _compare_replicas(self, gradients: list[Tensor]) -> None:
        """Compare the tensor ranks' gradients of what each holds, for code that is not ours."""
        group, (*_, module) = self.workers.world.group(Axis.TENSOR), self.model.stages
        if group is not None and isinstance(module, CausalModule):
            check_replicas(module, self.model.slices, gradients, group)


def report_step(
    step: int, update: Update, known: SynchronizedStep | None, *, reporter: RunReporter
) -> None:
    """Report a finished step (counted from 1), with what is known of all workers.

    Args:
        step: number of the step.
        update: result of the update.
        known: figures of all workers, if this step was synchronized.
        reporter: prints and records figures.
    """
    reporter.finish_step(
        step,
        losses=known.losses if known else {},
        gradient_norm=update.totals.gradient_norm,
        learning_rate=update.rate,
        skipped_steps=update.scale.skipped,
        staleness=known and known.staleness,
        rewards=Rewards.of(update.totals.counted) if update.totals.counted else None,
    )


def refuse_non_finite(totals: StepTotals, scale: LossScale, *, step: int) -> None:
    """End the run where skipping the step does not help, as no smaller scale is left.

    Args:
        totals: sums of the step.
        scale: loss scale of fp16.
        step: number of the step.

    Raises:
        NonFiniteLossError: the loss or the gradient is not finite.
    """
    if not totals.finite and scale.value < 1:
        raise NonFiniteLossError(
            f"step {step}: {_not_finite(totals)}; lower optimizer.learning_rate or"
            " optimizer.max_gradient_norm, look at the data of this step, or leave out a few such"
            " steps (optimizer.max_skipped_steps)"
        )


def _not_finite(totals: StepTotals) -> str:
    return f"the loss is {totals.loss} and the gradient norm {totals.gradient_norm}"
