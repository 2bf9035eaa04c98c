"""How large an elastic gang may be."""

from __future__ import annotations

from drumline.api.parallelism import ParallelismSpec
from drumline.api.trainingjob import TrainerSpec, TrainingJobSpec


def allowed_sizes(spec: TrainingJobSpec) -> tuple[int, ...]:
    """Numbers of pods the gang may have, ascending; the last is what is wanted.

    The global batch stays the same at every size, so it has to split evenly over the ranks that see
    different samples; whole sets of ranks that work together remain, and no slice of the topology
    is cut.
    """
    if spec.min_nodes is None or spec.trainer is None:
        return (spec.nodes,)
    trainer, gpus = spec.trainer, spec.gpus_per_node
    slices = (spec.topology.slices if spec.topology else None) or []
    whole = max((one.nodes for one in slices), default=1)
    sizes = range(spec.min_nodes, spec.nodes)
    fitting = (size for size in sizes if size % whole == 0 and _splits(trainer, ranks=size * gpus))
    return (*fitting, spec.nodes)


def data_parallel_size(trainer: TrainerSpec, *, ranks: int) -> int:
    """Over how many of so many ranks the global batch is split."""
    degrees = trainer.parallelism
    return ranks if degrees is None else ranks // _model_parallel_size(degrees)


def _splits(trainer: TrainerSpec, *, ranks: int) -> bool:
    degrees = trainer.parallelism
    if degrees is not None and ranks % (_model_parallel_size(degrees) * degrees.replicate):
        return False
    return trainer.global_batch_size % data_parallel_size(trainer, ranks=ranks) == 0


def _model_parallel_size(degrees: ParallelismSpec) -> int:
    return degrees.tensor * degrees.context * degrees.pipeline
