"""Whether gradients of FSDP are summed over the ranks after each micro-batch. No torch."""

from __future__ import annotations

from drumline_trainer.config import DataParallel, TrainerConfig
from drumline_trainer.layout import Layout
from drumline_trainer.shapes.flops import weights

MOST_WHOLE_BYTES = 8 * 2**30


def shards_gradients(config: TrainerConfig, layout: Layout) -> bool:
    """What the settings say, or else: where whole fp32 gradients would be more than 8 GiB.

    Summed once they cost less sending, and 4 bytes a parameter on every rank from the second
    micro-batch on. An elastic job that loses half of its ranks goes on with two micro-batches
    where it had one: a model of 70 billion parameters would need 270 GiB more, at a recovery.
    The answer follows from the model, so that it is the same at every size of the job.
    """
    chosen = config.memory.shard_gradients
    if chosen is not None:
        return chosen
    if layout.data_parallel is not DataParallel.FSDP or layout.pipeline > 1:
        return False
    if config.lora is not None:
        return False
    return 4 * weights(config.model) // layout.tensor > MOST_WHOLE_BYTES
