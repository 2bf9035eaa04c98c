"""The sizes that an elastic gang may have."""

from __future__ import annotations

from drumline.api.parallelism import ParallelismSpec
from drumline.api.trainingjob import TrainerSpec, TrainingJobSpec


def allowed_sizes(spec: TrainingJobSpec) -> tuple[int, ...]:
    """Numbers of pods that the gang may have, ascending; the last is spec.nodes.

    The global batch is the same at every size, so it has to split evenly over the data-parallel
    ranks; model-parallel groups stay whole, and no slice of the topology is cut.

    Example: nodes=8, minNodes=2, gpusPerNode=8, globalBatchSize=64, no parallelism: of 16, 24, 32,
    40, 48, 56 and 64 ranks only 16, 32 and 64 divide the batch, so the sizes are (2, 4, 8).
    """
    if spec.min_nodes is None or spec.trainer is None:
        return (spec.nodes,)
    trainer, gpus = spec.trainer, spec.gpus_per_node
    slices = (spec.topology.slices if spec.topology else None) or []
    slice_nodes = max((request.nodes for request in slices), default=1)
    sizes = range(spec.min_nodes, spec.nodes)
    fitting = (
        size for size in sizes if size % slice_nodes == 0 and _splits(trainer, ranks=size * gpus)
    )
    return (*fitting, spec.nodes)


def data_parallel_size(trainer: TrainerSpec, *, ranks: int) -> int:
    """Over how many of `ranks` ranks the global batch is split."""
    degrees = trainer.parallelism
    return ranks if degrees is None else ranks // _model_parallel_size(degrees)


def _splits(trainer: TrainerSpec, *, ranks: int) -> bool:
    degrees = trainer.parallelism
    if degrees is not None and ranks % (_model_parallel_size(degrees) * degrees.replicate):
        return False
    return trainer.global_batch_size % data_parallel_size(trainer, ranks=ranks) == 0


def _model_parallel_size(degrees: ParallelismSpec) -> int:
    return degrees.tensor * degrees.context * degrees.pipeline
