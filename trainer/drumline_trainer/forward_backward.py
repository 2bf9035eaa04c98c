"""One step's forward and backward passes, micro-batch by micro-batch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from drumline_agent.rank_protocol.heartbeat import Phase
from drumline_trainer.assembly.parallel_model import ParallelModel
from drumline_trainer.metrics.reporter import RunReporter
from drumline_trainer.parallelism.batch_shard import StepBatch


def forward_backward(
    parallel_model: ParallelModel,
    batches: Iterator[StepBatch],
    *,
    device: torch.device,
    scale: float = 1.0,
    reporter: RunReporter,
) -> Tensor:
    """Pass this rank's share of the next global batch; gradients add up in the model.

    Args:
        parallel_model: the model as assembled.
        batches: micro-batches of the step.
        device: device of the rank.
        scale: factor of the loss.
        reporter: prints and records figures.

    Returns:
        This rank's part of the batch's mean loss, times the scale as gradients are.
    """
    # Phase 1: data. The prefetcher has the batch ready unless reading is slower than a step.
    reporter.enter(Phase.DATA, micro_batch=0)
    batch = next(batches)
    # The divisor must be set before the first loss: it counts the targets of the global batch.
    parallel_model.begin_step(targets=batch.targets, tokens=batch.tokens, scale=scale)
    # Phase 2, with a pipeline: all micro-batches are on the device before the schedule starts.
    if parallel_model.pipeline is not None:
        loaded = [micro_batch.on(device) for micro_batch in batch.micro_batches]
        inputs, targets, documents = zip(*loaded, strict=True)
        reporter.enter(Phase.FORWARD)
        return parallel_model.pipeline.forward_backward(inputs, targets, documents)
    # Phase 2, without one: gradients add up over the micro-batches in order, so their sum has the
    # same bits each time.
    total = torch.zeros((), device=device)
    for number, micro_batch in enumerate(batch.micro_batches):
        if number:
            reporter.enter(Phase.DATA, micro_batch=number)
        inputs_BS, targets_BS, documents = micro_batch.on(device)
        reporter.enter(Phase.FORWARD)
        loss = parallel_model.micro_batch_loss(inputs_BS, targets_BS, documents)
        reporter.enter(Phase.BACKWARD)
        loss.backward()  # pyright: ignore[reportUnknownMemberType] - untyped in torch
        # A tensor on the device. Reading its value here would wait for the GPU in every
        # micro-batch.
        total += loss.detach()
    return total
