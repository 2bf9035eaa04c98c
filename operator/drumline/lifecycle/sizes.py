"""How large an elastic gang may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drumline.api.trainingjob import TrainingJobSpec


def legal_sizes(spec: TrainingJobSpec) -> tuple[int, ...]:
    """Numbers of pods the gang may have, ascending; the last is what is wanted.

    The global batch stays the same at every size, so it has to split evenly over the ranks.
    """
    if spec.min_nodes is None or spec.trainer is None:
        return (spec.nodes,)
    batch, gpus = spec.trainer.global_batch_size, spec.gpus_per_node
    fitting = (size for size in range(spec.min_nodes, spec.nodes) if batch % (size * gpus) == 0)
    return (*fitting, spec.nodes)
