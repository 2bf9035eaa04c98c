"""The sizes that an elastic gang may have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.verdict import Schedulable
from drumline_api.parallelism import ParallelismSpec
from drumline_api.trainingjob import TrainerSpec, TrainingJobSpec
from drumline_contract.layout_validation import divisors

MOST_SIZES: Final = 512
"""Most sizes of a gang besides the largest one, if any number of pods is allowed."""


def allowed_sizes(spec: TrainingJobSpec) -> tuple[int, ...]:
    """Return the numbers of pods that the gang may have, ascending. The last is spec.nodes.

    The global batch is the same at every size, so it must divide evenly over the data-parallel
    ranks. Model-parallel groups stay whole, and no slice of the topology is cut.

    Example: nodes=8, minNodes=2, gpusPerNode=8, globalBatchSize=64, no parallelism: of 16, 24, 32,
    40, 48, 56 and 64 ranks only 16, 32 and 64 divide the batch, so the sizes are (2, 4, 8).

    A template's program divides its work itself, so any number of pods is allowed. Of more than
    `MOST_SIZES` numbers, the gang gets those in equal steps. If the ranks choose their layout, the
    verdict has the sizes (`plan.auto_sizes`), and only `nodes` is certain here.
    """
    return (spec.nodes,) if chooses_layout(spec) else even_sizes(spec)


def even_sizes(spec: TrainingJobSpec) -> tuple[int, ...]:
    """Return the sizes at which the data-parallel ranks divide the global batch."""
    if spec.min_nodes is None:
        return (spec.nodes,)
    slice_nodes = _slice_nodes(spec)
    if spec.trainer is None:
        return _stepped(spec.min_nodes, spec.nodes, slice_nodes)
    degrees = spec.trainer.parallelism
    together = 1 if degrees is None else _model_parallel_size(degrees)
    return _sizes(
        _Elastic(
            smallest=spec.min_nodes,
            largest=spec.nodes,
            gpus=spec.gpus_per_node,
            batch=spec.trainer.global_batch_size,
            together=together,
            multiple=together * (1 if degrees is None else degrees.replicate),
            slice_nodes=slice_nodes,
        )
    )


def may_keep(spec: TrainingJobSpec, size: int) -> bool:
    """Return whether a gang that has this size may keep it.

    If the ranks choose their layout, any size within the bounds may be kept. The ranks trained on
    it, and the verdict may not be known yet, for example after a start of the operator.
    """
    if spec.min_nodes is not None and (chooses_layout(spec) or spec.trainer is None):
        whole = chooses_layout(spec) or size % _slice_nodes(spec) == 0
        return size == spec.nodes or (spec.min_nodes <= size < spec.nodes and whole)
    return size in allowed_sizes(spec)


def _slice_nodes(spec: TrainingJobSpec) -> int:
    slices = (spec.topology.slices if spec.topology else None) or []
    return max((request.nodes for request in slices), default=1)


def sizes_of(job: Job) -> tuple[int, ...]:
    """Return the numbers of pods that the gang may have, ascending, with its present size.

    The last is spec.nodes. O(1) if the job keeps its verdict.
    """
    verdict = job.verdict
    sizes = verdict.sizes if isinstance(verdict, Schedulable) and verdict.sizes else None
    if sizes is None:
        sizes = allowed_sizes(job.spec)
    if job.status.assignment is None or job.size in sizes or not may_keep(job.spec, job.size):
        return sizes
    return tuple(sorted({*sizes, job.size}))


def chooses_layout(spec: TrainingJobSpec) -> bool:
    """Return whether the ranks choose their layout (`parallelism.mode: Auto`)."""
    degrees = spec.trainer.parallelism if spec.trainer is not None else None
    return degrees is not None and degrees.mode == "Auto"


def data_parallel_size(trainer: TrainerSpec, *, ranks: int) -> int:
    """Return the number of data-parallel ranks among `ranks` ranks."""
    degrees = trainer.parallelism
    return ranks if degrees is None else ranks // _model_parallel_size(degrees)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Elastic:
    """Everything that the sizes of an elastic gang depend on."""

    smallest: int
    largest: int
    gpus: int
    batch: int
    together: int
    """Ranks that work on the same samples."""
    multiple: int
    """The ranks are a multiple of this."""
    slice_nodes: int


@lru_cache(maxsize=1024)
def _stepped(smallest: int, largest: int, slice_nodes: int) -> tuple[int, ...]:
    """Return the multiples of `slice_nodes` from the smallest to the largest size.

    Above `MOST_SIZES` they are that many, in equal steps. Otherwise each job of a few lines would
    take half a megabyte.
    """
    whole = range(-(-smallest // slice_nodes) * slice_nodes, largest, slice_nodes)
    return (*whole[:: max(1, -(-len(whole) // MOST_SIZES))], largest)


@lru_cache(maxsize=4096)
def _sizes(elastic: _Elastic) -> tuple[int, ...]:
    """Return the allowed sizes, one for each divisor of the batch that fits. O(sqrt(batch)).

    Cached, because every cycle asks for the sizes of every elastic job.
    """
    sizes: list[int] = []
    # Go over the divisors instead of the sizes: there are fewer of them for large gangs.
    for parts in divisors(elastic.batch):
        ranks = parts * elastic.together
        size, rest = divmod(ranks, elastic.gpus)
        fits = not rest and ranks % elastic.multiple == 0 and size % elastic.slice_nodes == 0
        if fits and elastic.smallest <= size < elastic.largest:
            sizes.append(size)
    return (*sizes, elastic.largest)


def _model_parallel_size(degrees: ParallelismSpec) -> int:
    return degrees.tensor * degrees.context * degrees.pipeline
