"""Jobs as the cache has them: the order of those that were created in the same second."""

from __future__ import annotations

from dataclasses import replace

from drumline.controller.jobs.conversion import gang_of
from drumline.controller.jobs.jobs import JobCache
from drumline.lifecycle import transitions
from drumline.lifecycle.model.job import ARRIVAL_SECONDS, Job
from drumline.lifecycle.model.timestamps import order_timestamp, parse_timestamp
from tests.unit.controller.views import job_view


def cache() -> JobCache:
    return JobCache(changed=lambda *_: None, forgotten=lambda *_: None)


def get(jobs: JobCache, name: str) -> Job:
    job = jobs.get(f"team/{name}")
    assert job is not None
    return job


def in_line(*jobs: Job) -> list[str]:
    gangs = [gang_of(job, priority=0) for job in jobs]
    return [gang.uid for gang in sorted(gangs, key=lambda gang: gang.queued_at)]


def test_jobs_of_one_second_wait_in_the_order_in_which_they_came() -> None:
    jobs = cache()
    for name in ("c", "a", "b"):
        jobs.on_job(None, job_view(name, uid=name))
    waiting = [get(jobs, name) for name in "abc"]
    assert in_line(*waiting) == ["c", "a", "b"]
    assert get(jobs, "c").queued_at == get(jobs, "c").created_at

    changed = job_view("a", uid="a", version=2, generation=2, nodes=3)
    jobs.on_job(job_view("a", uid="a"), changed)
    assert in_line(*(get(jobs, name) for name in "abc")) == ["c", "a", "b"]


def test_their_status_keeps_the_order_for_the_next_operator() -> None:
    jobs, later = cache(), cache()
    for name in ("b", "a"):
        jobs.on_job(None, job_view(name, uid=name))
    for name in ("a", "b"):
        status = transitions.waiting(get(jobs, name), reason="Pending", message="", now=0.0)
        assert status.queued_at is not None
        later.on_job(None, job_view(name, uid=name, status={"queuedAt": status.queued_at}))
    assert in_line(get(later, "a"), get(later, "b")) == ["b", "a"]


def test_jobs_that_wait_for_the_same_one_keep_their_order() -> None:
    jobs = cache()
    for name in ("b", "a"):
        jobs.on_job(None, job_view(name, uid=name))
    first, second = get(jobs, "b"), get(jobs, "a")
    ended = first.created_at + 60.0
    assert first.queued_after(ended) == ended < second.queued_after(ended) < ended + 1.0
    assert second.queued_after(0.0) == second.queued_at
    restarted = replace(second, arrival=0)
    assert restarted.queued_after(ended) == ended


def test_a_time_of_the_order_has_microseconds_only_where_there_are_any() -> None:
    assert order_timestamp(1_700_000_000.0) == "2023-11-14T22:13:20Z"
    text = order_timestamp(1_700_000_000.0 + 3 * ARRIVAL_SECONDS)
    assert text == "2023-11-14T22:13:20.000003Z"
    assert order_timestamp(parse_timestamp(text)) == text


def test_jobs_with_equal_specs_have_one_parsed_spec() -> None:
    jobs = cache()
    for name, nodes in (("a", 2), ("b", 2), ("c", 3)):
        jobs.on_job(None, job_view(name, uid=name, nodes=nodes))
    assert get(jobs, "b").spec is get(jobs, "a").spec
    assert get(jobs, "c").spec.nodes == 3
