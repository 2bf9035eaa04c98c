from __future__ import annotations

from pathlib import Path

from drumline_simulator.input.cluster_file import parse
from drumline_simulator.input.synthetic import trace
from drumline_simulator.input.trace import read, write

EXAMPLE = Path(__file__).parents[3] / "examples" / "simulation"


def test_a_trace_depends_on_its_seed_alone() -> None:
    made = trace(seed=3, jobs=50, gpus=64, queues=["a", "b"])
    assert trace(seed=3, jobs=50, gpus=64, queues=["a", "b"]) == made
    assert trace(seed=4, jobs=50, gpus=64, queues=["a", "b"]) != made
    assert list(read(write(made).splitlines(), file="t")) == made


def test_the_load_is_the_work_over_what_the_cluster_can_do() -> None:
    made = trace(seed=1, jobs=4000, gpus=256, queues=["a"], load=1.5)
    work = sum(job.gpus * job.duration_seconds for job in made)
    span = made[-1].submit_seconds - made[0].submit_seconds
    assert 1.4 < work / (256 * span) < 1.6


def test_jobs_fit_the_cluster_and_end_before_their_limit() -> None:
    made = trace(seed=1, jobs=500, gpus=64, queues=["a", "b", "c"])
    assert all(1 <= job.gpus <= 32 for job in made)
    assert all(job.duration_seconds <= (job.max_runtime_seconds or 0) for job in made)


def test_each_kind_of_work_has_its_queues() -> None:
    made = trace(seed=1, jobs=500, gpus=256, queues=["a", "b", "c"])
    sizes = {name: {job.gpus for job in made if job.queue == name} for name in "abc"}
    assert sizes == {"a": {32, 64, 128}, "b": {8, 16}, "c": {1, 2, 4, 8}}
    alone = trace(seed=1, jobs=500, gpus=256, queues=["a"])
    assert {job.gpus for job in alone} == {1, 2, 4, 8, 16, 32, 64, 128}


def test_the_example_is_the_made_up_trace_of_its_cluster() -> None:
    text = (EXAMPLE / "cluster.yaml").read_text()
    setup = parse(text, file="cluster.yaml")
    queues = [queue.name for queue in setup.cluster.queues if any(queue.nominal.values())]
    made = trace(seed=1, jobs=2000, gpus=setup.cluster.gpus, queues=queues)
    assert (EXAMPLE / "trace.csv").read_text() == write(made)
