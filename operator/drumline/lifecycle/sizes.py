"""How large an elastic gang may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drumline.api.trainingjob import TrainingJobSpec


def legal_sizes(spec: TrainingJobSpec) -> tuple[int, ...]:
    """Numbers of pods the gang may have, ascending; the last is what is wanted.

    The global batch stays the same at every size, so it has to split evenly over the ranks, and no
    slice of the topology is cut.
    """
    if spec.min_nodes is None or spec.trainer is None:
        return (spec.nodes,)
    batch, gpus = spec.trainer.global_batch_size, spec.gpus_per_node
    slices = (spec.topology.slices if spec.topology else None) or []
    whole = max((one.nodes for one in slices), default=1)
    sizes = range(spec.min_nodes, spec.nodes)
    fitting = (size for size in sizes if batch % (size * gpus) == 0 and size % whole == 0)
    return (*fitting, spec.nodes)
