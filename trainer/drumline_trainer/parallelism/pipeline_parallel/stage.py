"""torch's pipeline stage: its metadata given, its end heard, its work timed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage

from drumline_contract.layout import Axis
from drumline_trainer.metrics.step_timer import StepTimer, step_part
from drumline_trainer.models.documents import Documents
from drumline_trainer.models.replaceable import LayerLoop
from drumline_trainer.parallelism.pipeline_parallel.micro_batches import MicroBatchSpec
from drumline_trainer.sharding.world import World


class TimedStage(PipelineStage):
    """torch's stage, with its metadata given and an ear for its end."""

    def __init__(
        self,
        module: nn.Module,
        number: int,
        *,
        world: World,
        micro_batches: MicroBatchSpec,
        done: Callable[[nn.Module], None] | None,
        clock: StepTimer | None,
    ) -> None:
        inputs = torch.empty(micro_batches.inputs, dtype=micro_batches.inputs_dtype, device="meta")
        hidden = torch.empty(
            micro_batches.hidden, dtype=micro_batches.dtype, device="meta", requires_grad=True
        )
        super().__init__(
            module,
            number,
            world.layout.stages,
            world.device,
            input_args=inputs if number == 0 else hidden,
            output_args=hidden,  # the last stage's stays here, and its shape is not needed
            group=world.group(Axis.PIPELINE),
        )
        self._done = done
        self._working = partial(working, clock=clock, stage=number)
        self._forgets = type(getattr(module, "layer_loop", None)) not in (LayerLoop, type(None))
        """For its activations: torch would compute them again for each weight in turn."""
        self.documents: Sequence[tuple[Documents, ...]] = ()
        """Of each micro-batch. Not passed by torch, which would look for a gradient in them."""
        self._micro_batch = 0

    def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **options: Any) -> Any:
        """Called by the schedule with a micro-batch's number."""
        self._micro_batch = fwd_chunk_id
        with self._working("forward"):
            return super().forward_one_chunk(fwd_chunk_id, *arguments, **options)

    def backward_one_chunk(
        self, bwd_chunk_id: int, *arguments: Any, full_backward: bool = True, **options: Any
    ) -> None:
        """Called by the schedule: all of a micro-batch's backward pass, or for its inputs."""
        whole = full_backward or self._forgets
        with self._working("backward"):
            super().backward_one_chunk(bwd_chunk_id, *arguments, full_backward=whole, **options)  # pyright: ignore[reportUnknownMemberType] - torch gives the loss no type

    def backward_weight_one_chunk(self, *arguments: Any, **options: Any) -> None:
        """Called by the schedule: what is left of a micro-batch's backward pass."""
        if self._forgets:
            return
        with self._working("backward"):
            super().backward_weight_one_chunk(*arguments, **options)

    def forward_maybe_with_nosync(self, *arguments: Any, **options: Any) -> Any:
        """Called by that with what the module is given."""
        documents = self.documents[self._micro_batch] if self.documents else ()
        return super().forward_maybe_with_nosync(*arguments, *documents, **options)  # pyright: ignore[reportUnknownMemberType] - untyped in torch

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Called by the schedule after the stage's last micro-batch."""
        with self._working("backward"):
            super().perform_reduce_grad(grad_scale_factor)
        if self._done is not None and not isinstance(self.submod, FSDPModule):
            self._done(self.submod)

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """Of torch 2.11, which greets all neighbours; one on this rank Gloo cannot reach."""
        greetings = cast("Any", super())._get_init_p2p_neighbors_ops()  # noqa: SLF001 - overrides torch's own
        return [op for op in greetings if op.group_peer != self.group_rank]

    def _validate_fwd_outputs(self, outputs: tuple[Tensor, ...]) -> None:
        """Of torch 2.11, which compares the last stage's too; later versions do not."""
        if not self.is_last:
            cast("Any", super())._validate_fwd_outputs(outputs)  # noqa: SLF001 - overrides torch's own


@contextmanager
def working(what: str, *, clock: StepTimer | None, stage: int) -> Generator[None]:
    """Around what a stage computes: a part of the step, and of what the stage takes."""
    with step_part(what):
        if clock is None:
            yield
            return
        clock.begin(str(stage))
        yield
        clock.end()
