"""Legal sizes of an elastic gang."""

from __future__ import annotations

import pytest

from drumline.lifecycle.model.sizes import MOST_SIZES, allowed_sizes, may_keep
from tests.builders import a_job

TEMPLATE = {"image": "any:1"}


@pytest.mark.parametrize(
    ("nodes", "gpus", "min_nodes", "batch", "sizes"),
    [
        (4, 1, None, 16, (4,)),
        (4, 1, 4, 16, (4,)),
        (4, 1, 1, 16, (1, 2, 4)),
        (4, 2, 1, 24, (1, 2, 3, 4)),
        (6, 1, 2, 30, (2, 3, 5, 6)),
        (3, 1, 2, 7, (3,)),
    ],
)
def test_sizes_are_within_the_range_and_split_the_batch(
    nodes: int, gpus: int, min_nodes: int | None, batch: int, sizes: tuple[int, ...]
) -> None:
    trainer = {"globalBatchSize": batch}
    job = a_job(nodes=nodes, gpusPerNode=gpus, minNodes=min_nodes, trainer=trainer)
    assert allowed_sizes(job.spec) == sizes


def test_a_template_has_a_single_size_unless_it_is_elastic() -> None:
    assert allowed_sizes(a_job(nodes=3, template=TEMPLATE).spec) == (3,)
    script = {**TEMPLATE, "launch": "PerGpu", "command": ["train"]}
    assert allowed_sizes(a_job(nodes=5, minNodes=2, template=script).spec) == (2, 3, 4, 5)


def test_no_size_of_a_template_cuts_a_slice() -> None:
    script = {**TEMPLATE, "launch": "PerGpu", "command": ["train"]}
    topology = {"slices": [{"level": "clique", "nodes": 2}]}
    job = a_job(nodes=8, minNodes=3, template=script, topology=topology)
    assert allowed_sizes(job.spec) == (4, 6, 8)


def test_no_size_cuts_a_slice_and_smaller_slices_lie_within_the_largest() -> None:
    slices = [{"level": "clique", "nodes": 2}, {"level": "rack", "nodes": 4, "required": False}]
    job = a_job(
        nodes=12,
        gpusPerNode=1,
        minNodes=2,
        topology={"slices": slices},
        trainer={"globalBatchSize": 48},
    )
    assert allowed_sizes(job.spec) == (4, 8, 12)


def test_every_size_holds_whole_sets_of_ranks_that_work_together() -> None:
    trainer = {"globalBatchSize": 24, "parallelism": {"tensor": 2, "pipeline": 2}}
    job = a_job(nodes=6, gpusPerNode=2, minNodes=1, trainer=trainer)
    assert allowed_sizes(job.spec) == (2, 4, 6)
    trainer["parallelism"]["replicate"] = 2
    assert allowed_sizes(a_job(nodes=8, gpusPerNode=2, minNodes=1, trainer=trainer).spec) == (4, 8)


def test_a_template_of_thousands_of_pods_gets_few_sizes_and_keeps_any() -> None:
    """A tenant can write this job in a few lines."""
    template = {"image": "x", "command": ["x"], "launch": "PerGpu"}
    slices = {"slices": [{"level": "rack", "nodes": 4}]}
    spec = a_job(nodes=10_000, minNodes=8, template=template, topology=slices).spec
    sizes = allowed_sizes(spec)
    assert (sizes[0], sizes[-1]) == (8, 10_000)
    assert len(sizes) <= MOST_SIZES + 1
    assert all(size % 4 == 0 for size in sizes)
    kept = [size for size in (4, 8, 12, 333, 336, 9_996, 10_000, 10_004) if may_keep(spec, size)]
    assert kept == [8, 12, 336, 9_996, 10_000]
