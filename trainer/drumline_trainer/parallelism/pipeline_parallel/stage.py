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
    """torch's stage, with its metadata given and an ear for its end.

    Args:
        module: layers of the stage.
        number: index of the stage in the model.
        world: process groups, for the pipeline axis.
        micro_batches: shapes and dtype between stages.
        done: called after the last backward pass.
        clock: measures parts of the step.
    """

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
        # Shapes are given, so the first step need not exchange them. Meta tensors cost no memory.
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
        # Recomputing layers cannot split a backward pass: their graph exists only once.
        self._forgets = type(getattr(module, "layer_loop", None)) not in (LayerLoop, type(None))
        """For its activations: torch would compute them again for each weight in turn."""
        self.documents: Sequence[tuple[Documents, ...]] = ()
        """Documents of each micro-batch. PyTorch does not pass them, because it would expect
        gradients for them."""
        self._micro_batch = 0

    def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **options: Any) -> Any:
        """Run the forward pass of a micro-batch. The schedule calls it with its number."""
        self._micro_batch = fwd_chunk_id
        with self._working("forward"):
            return super().forward_one_chunk(fwd_chunk_id, *arguments, **options)

    def backward_one_chunk(
        self, bwd_chunk_id: int, *arguments: Any, full_backward: bool = True, **options: Any
    ) -> None:
        """Run a micro-batch's backward pass, or its part for the inputs. The schedule calls it."""
        # Then the whole pass runs here, and nothing remains for `backward_weight_one_chunk`.
        whole = full_backward or self._forgets
        with self._working("backward"):
            super().backward_one_chunk(bwd_chunk_id, *arguments, full_backward=whole, **options)  # pyright: ignore[reportUnknownMemberType] - torch gives the loss no type

    def backward_weight_one_chunk(self, *arguments: Any, **options: Any) -> None:
        """Run the remaining part of a micro-batch's backward pass. The schedule calls it."""
        if self._forgets:
            return
        with self._working("backward"):
            super().backward_weight_one_chunk(*arguments, **options)

    def forward_maybe_with_nosync(self, *arguments: Any, **options: Any) -> Any:
        """Add the micro-batch's documents to the arguments of the module."""
        documents = self.documents[self._micro_batch] if self.documents else ()
        return super().forward_maybe_with_nosync(*arguments, *documents, **options)  # pyright: ignore[reportUnknownMemberType] - untyped in torch

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Report the end of the stage's last micro-batch. The schedule calls it."""
        with self._working("backward"):
            super().perform_reduce_grad(grad_scale_factor)
        # DDP and ZeRO send their last buckets now, beside the other stages' work.
        if self._done is not None and not isinstance(self.submod, FSDPModule):
            self._done(self.submod)

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """Skip the handshake with stages on this rank, which Gloo cannot reach. For torch 2.11."""
        greetings = cast("Any", super())._get_init_p2p_neighbors_ops()  # noqa: SLF001 - overrides torch's own
        return [op for op in greetings if op.group_peer != self.group_rank]

    def _validate_fwd_outputs(self, outputs: tuple[Tensor, ...]) -> None:
        """Skip the check of the last stage's outputs in torch 2.11; later versions do the same."""
        if not self.is_last:
            cast("Any", super())._validate_fwd_outputs(outputs)  # noqa: SLF001 - overrides torch's own


@contextmanager
def working(what: str, *, clock: StepTimer | None, stage: int) -> Generator[None]:
    """Count what a stage computes as a part of the step, and as time of the stage.

    Args:
        what: name of the part.
        clock: measures parts of the step.
        stage: index of the stage.
    """
    with step_part(what):
        if clock is None:
            yield
            return
        clock.begin(str(stage))
        yield
        clock.end()
