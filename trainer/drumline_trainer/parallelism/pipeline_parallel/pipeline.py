"""Pipeline parallelism: each rank has some of the layers, and micro-batches pass through them.

A stage is the model with other layers and parts taken out, so its parameters keep the names of the
whole model. torch's schedules say when a rank works on which micro-batch; hidden states and their
gradients travel between neighbours of the pipeline axis. Their shape and type are known beforehand:
nothing is inferred from a first step, and no pickled description travels.

Losses are summed and torch scales nothing: what is backpropagated is the loss that is given.

With split backward passes a stage's graph is walked twice, for the gradients of its inputs and,
later, for those of its weights. Two things follow. Weights' gradients are then added up by torch's
own hand and no hook of a parameter notices: `stage_done` does. And torch looks the weights up again
in between: those of an FSDP2 unit that was sharded after its forward are not the ones in the graph,
and their gradients would be missing or wrong without a word. Such units are refused. A stage that
computes activations again, or fetches them, walks its graph but once, when its inputs' gradients
are due: torch would do that again for every weight.

1F1B of two stages and three micro-batches (F forward, B backward; `--` the stage waits):

    stage 0   F0 F1 -- B0 F2 B1 -- B2
    stage 1   -- F0 B0 F1 B1 F2 B2 --

Schedules: GPipe (Huang et al. 2018), 1F1B (Narayanan et al. 2019) and interleaved (2021), zero
bubble and ZBV (Qi et al. 2023), DualPipeV (DeepSeek-AI 2024).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage

from drumline_contract.config import ConfigError, Schedule
from drumline_contract.layout import Axis, Layout
from drumline_contract.shapes.partition import Partition
from drumline_trainer.metrics.step_timer import StepTimer, step_part
from drumline_trainer.models.documents import Documents
from drumline_trainer.parallelism.pipeline_parallel.forward_pass import ForwardPass, Loss
from drumline_trainer.parallelism.pipeline_parallel.micro_batches import MicroBatchSpec
from drumline_trainer.parallelism.pipeline_parallel.stage import TimedStage, working
from drumline_trainer.sharding.slices import named_modules
from drumline_trainer.sharding.world import World

_CLASSES = {
    Schedule.GPIPE: "ScheduleGPipe",
    Schedule.ONE_F_ONE_B: "Schedule1F1B",
    Schedule.INTERLEAVED: "ScheduleInterleaved1F1B",
    Schedule.ZERO_BUBBLE: "ScheduleInterleavedZeroBubble",
    Schedule.ZBV: "ScheduleZBVZeroBubble",
    Schedule.DUAL_PIPE_V: "ScheduleDualPipeV",
}

_HEAD = frozenset({"norm", "output"})
_TIED_HEAD = frozenset({"norm", "embedding"})


def stage_modules(
    model: nn.Module, *, layout: Layout, index: int, partition: Partition
) -> list[nn.Module]:
    """Return copies of the stages at a place of the pipeline, in the order of the model.

    `norm` and `output` belong to the last stage, other modules outside of the layers to the first,
    modules without parameters to all. A tied model's `embedding` is also the last stage's head.
    These are two copies of one parameter (`pipeline_parallel.tied`).

    Args:
        model: the whole model on the meta device.
        layout: degrees of parallelism.
        index: index on the pipeline axis.
        partition: layers of each stage.
    """
    return [_cut(model, stage=stage, partition=partition) for stage in layout.stages_of(index)]


class Pipeline:
    """This rank's stages under a schedule."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        *,
        world: World,
        micro_batches: MicroBatchSpec,
        loss: Loss,
        stage_done: Callable[[nn.Module], None] | None = None,
        clock: StepTimer | None = None,
    ) -> None:
        """Prepare; nothing is sent before the first step.

        Args:
            modules: modules of `stage_modules`, with data parallelism and storage.
            world: its layout selects the schedule.
            micro_batches: number of micro-batches of a step.
            loss: called on the last stage.
            stage_done: called with a module when the gradients of all micro-batches are in its
                parameters' `.grad`; not with FSDP2's, which reduce their gradients themselves.
            clock: measures the time of each stage, under its number.

        Raises:
            ConfigError: this version of PyTorch lacks the schedule.
            ValueError: there are too few micro-batches to fill it, or an FSDP2 unit is sharded
                after its forward although the backward is split.
        """
        # which stages of the model this rank has
        layout = world.layout
        self._device = world.device
        if layout.keeps_gathered:
            check_keeps_gathered(modules)
        numbers = layout.stages_of(world.index(Axis.PIPELINE))
        self._has_first, self._has_last = 0 in numbers, layout.stages - 1 in numbers
        self._clock = clock
        self._warm = False
        """A first step takes longer: its times do not count."""
        # torch's stages around the modules, and torch's schedule over the stages
        self._stages = [
            TimedStage(
                module,
                number,
                world=world,
                micro_batches=micro_batches,
                done=stage_done,
                clock=clock,
            )
            for number, module in zip(numbers, modules, strict=True)
        ]
        self._forward = ForwardPass(self._stages, world=world, micro_batches=micro_batches)
        self._schedule = build_schedule(
            layout.schedule,
            self._stages,
            micro_batches=micro_batches.count,
            loss=_timed(loss, clock=clock, stage=layout.stages - 1),
        )

    def forward_backward(
        self,
        inputs: Sequence[Tensor],
        targets: Sequence[Tensor],
        documents: Sequence[tuple[Documents, ...]] = (),
    ) -> Tensor:
        """Add the gradients of all micro-batches to the parameters' `.grad`. Collective.

        Every rank of a pipeline passes the same samples: the first stage reads the inputs, the last
        one the targets, and all the documents of each micro-batch where they are separate.

        Args:
            inputs: tokens or images of each micro-batch.
            targets: targets of each micro-batch.
            documents: limits of documents, by micro-batch.

        Returns:
            The sum of the losses, 0 where the last stage is elsewhere.
        """
        # 1. what the schedule itself does not pass on
        losses: list[Tensor] = []
        for stage in self._stages:
            stage.documents = documents
        # 2. all forward and backward passes, as the schedule orders them
        with step_part("recv", Axis.PIPELINE):  # whenever no stage of this rank computes
            self._schedule.step(
                *((torch.cat(list(inputs)),) if self._has_first else ()),
                target=torch.cat(list(targets)) if self._has_last else None,
                losses=losses,
                return_outputs=False,
            )
        # 3. the sum of what the last stage found
        total = torch.zeros((), device=self._device)
        for loss in losses:
            total += loss.detach()
        if self._clock is not None and not self._warm:
            self._clock.restart()
            self._warm = True
        return total

    def forward_loss(
        self, inputs: Tensor, targets: Tensor, documents: tuple[Documents, ...], *, summed: Loss
    ) -> Tensor:
        """Return `forward_pass.ForwardPass.loss`.

        Args:
            inputs: tokens or images of the batch.
            targets: targets of the batch.
            documents: limits of documents, by micro-batch.
            summed: loss that is summed over samples.
        """
        return self._forward.loss(inputs, targets, documents, summed=summed)


def build_schedule(
    schedule: Schedule, stages: Sequence[PipelineStage], *, micro_batches: int, loss: Loss | None
) -> Any:
    """Build PyTorch's object for a schedule over this rank's stages.

    Args:
        schedule: the configured schedule.
        stages: this rank's stages.
        micro_batches: number of micro-batches in a step.
        loss: loss of the last stage. None: forward only.

    Raises:
        ConfigError: this version of PyTorch lacks the schedule.
        ValueError: there are too few micro-batches to fill it.
    """
    made_by = getattr(pipelining, _CLASSES[schedule], None)
    if made_by is None:
        raise ConfigError(
            f"parallelism.schedule: torch {torch.__version__} has no {schedule}; use 1f1b"
        )
    return made_by(
        list(stages) if schedule.interleaves else stages[0],
        n_microbatches=micro_batches,
        loss_fn=loss,
        # The loss is a mean over the global batch already.
        scale_grads=False,
    )


def check_keeps_gathered(modules: Sequence[nn.Module]) -> None:
    """Raise ValueError if an FSDP2 unit is sharded between forward and backward."""
    for root in modules:
        for name, module in named_modules(root):
            if isinstance(module, FSDPModule) and _reshards(module, is_root=module is root):
                raise ValueError(
                    f"FSDP2 unit {name or 'at the root'} is sharded after its forward"
                    " (reshard_after_forward), and with split backward passes torch then computes"
                    " wrong gradients; shard it with reshard_after_forward=False"
                )


def _timed(loss: Loss, *, clock: StepTimer | None, stage: int) -> Loss:
    """Measure the loss as forward time: a schedule computes it between the last stage's passes."""

    def loss_as_part(output: Tensor, targets: Tensor) -> Tensor:
        with working("forward", clock=clock, stage=stage):
            return loss(output, targets)

    return loss_as_part


def _cut(model: nn.Module, *, stage: int, partition: Partition) -> nn.Module:
    # the stage's own layers, under their numbers in the whole model
    module = copy.deepcopy(model)
    layers = cast("nn.ModuleDict", module.layers)
    for name in list(layers):
        if int(name) not in partition[stage]:
            del layers[name]
    # the last stage has the head and the first all other parts; those without parameters stay
    first, last = stage == 0, stage == len(partition) - 1
    head = _HEAD if getattr(module, "output", None) is not None else _TIED_HEAD
    for name, child in list(module.named_children()):
        mine = (last and name in head) or (first and name not in _HEAD)
        if not mine and child is not layers and next(child.parameters(), None) is not None:
            setattr(module, name, None)
    return module


def _reshards(module: FSDPModule, *, is_root: bool) -> bool:
    """Return whether its weights are sharded again after a forward; a root's only on request.

    FSDP2 has no public attribute for it. These names are those of torch 2.11 to 2.15.
    """
    state: Any = module._get_fsdp_state()  # noqa: SLF001 - torch has no public way # pyright: ignore[reportPrivateUsage] - torch has no public way
    if is_root and state._auto_reshard_after_forward:  # noqa: SLF001 - torch has no public way
        return False
    group = state._fsdp_param_group  # noqa: SLF001 - torch has no public way
    return group is not None and group._reshard_after_forward  # noqa: SLF001 - torch has no public way
