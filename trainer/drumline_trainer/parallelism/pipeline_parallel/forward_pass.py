"""Forward passes alone through a pipeline: no schedule of torch's has them.

A micro-batch passes through all stages before the next begins on a rank that has several of them;
where each rank has one, the ranks work on different micro-batches. Every rank sends and receives
in the order of micro-batches and, within one, of stages, so that no two wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage

from drumline_contract.layout import Axis
from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.models.documents import Documents
from drumline_trainer.parallelism.pipeline_parallel.micro_batches import MicroBatchSpec
from drumline_trainer.sharding.world import World

Loss = Callable[[Tensor, Tensor], Tensor]
"""Summed over a micro-batch, from the model's output and the targets."""


class ForwardPass:
    """The forward pass of this rank's stages.

    Args:
        stages: stages in the order of the model.
        world: provides the pipeline axis.
        micro_batches: shape and type of the tensors that are sent; any number may follow.
    """

    def __init__(
        self, stages: Sequence[PipelineStage], *, world: World, micro_batches: MicroBatchSpec
    ) -> None:
        layout = world.layout
        self._stages = sorted(stages, key=lambda stage: stage.stage_index)
        self._group = world.group(Axis.PIPELINE)
        self._place = world.index(Axis.PIPELINE)
        self._device = world.device
        self._spec = micro_batches
        self._owners = {
            stage: place for place in range(layout.pipeline) for stage in layout.stages_of(place)
        }

    @torch.no_grad()
    def loss(
        self, inputs: Tensor, targets: Tensor, documents: tuple[Documents, ...], *, summed: Loss
    ) -> Tensor:
        """Return the loss (a scalar) of one micro-batch. It is 0 on ranks without the last stage.

        Collective over the pipeline: every rank calls it for every micro-batch.

        Args:
            inputs: tokens [batch, positions] or images.
            targets: [batch, positions] or classes [batch].
            documents: further arguments of the stages.
            summed: the loss over all targets.
        """
        total = torch.zeros((), device=self._device)
        here: Tensor | None = None
        """Output of the previous stage, if that is on this rank."""
        for stage in self._stages:
            taken = inputs if stage.is_first else here
            # The stage before is on another rank.
            if taken is None:
                taken = self._received(stage.stage_index - 1, samples=len(inputs))
            with step_part("forward"):
                given: Tensor = stage.submod(taken, *documents)
            here = None
            if stage.is_last:
                total += summed(given, targets)
            elif self._owners[stage.stage_index + 1] == self._place:
                here = given
            else:
                self._send(given, stage.stage_index + 1)
        return total

    def _received(self, stage: int, *, samples: int) -> Tensor:
        shape = (samples, *self._spec.hidden[1:])
        hidden = torch.empty(shape, dtype=self._spec.dtype, device=self._device)
        with step_part("recv", Axis.PIPELINE):
            dist.recv(hidden, group=self._group, group_src=self._owners[stage])
        return hidden

    def _send(self, hidden: Tensor, stage: int) -> None:
        with step_part("recv", Axis.PIPELINE):
            dist.send(hidden.contiguous(), group=self._group, group_dst=self._owners[stage])
