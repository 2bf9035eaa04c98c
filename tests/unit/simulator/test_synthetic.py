from __future__ import annotations

from drumline.simulator.synthetic import trace
from drumline.simulator.trace import read, write


def test_the_same_seed_gives_the_same_trace_and_another_one_another() -> None:
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
    assert all(1 <= job.gpus <= 16 for job in made)
    assert all(job.duration_seconds <= (job.max_runtime_seconds or 0) for job in made)
    counts = [sum(job.queue == name for job in made) for name in "abc"]
    assert counts == sorted(counts, reverse=True)
