"""Questions about a cluster: what differs from what the same cycle decides as things are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_cli.decide import alternatives, cluster, what_if
from drumline_cli.decide.cluster import KnownJobs
from drumline_cli.decide.cycle import decided, read_policy
from drumline_cli.decide.job_decisions import JobVerdict
from drumline_cli.decide.live_objects import documents
from drumline_cli.decide.what_if import (
    Change,
    ChangedDecision,
    MoreQuota,
    NewJob,
    OtherSize,
    WhatIfAnswer,
)
from drumline_cli.errors import BadInput
from drumline_scheduler.admission import Admission
from drumline_scheduler.decisions import GangFault
from drumline_scheduler.forecast.cluster import ForecastCluster
from drumline_scheduler.forecast.expected_starts import LINE, KnownFutures
from tests.property.planted_faults import Place, first_gang, first_held, planted
from tests.texts import missing
from tests.unit.cli.decide.test_command import Json, a_class, a_job, a_node, a_pool, a_queue

NOW = 1_795_500_000.0
LATER = NOW + 86_400.0
"""All jobs of the objects are older."""
RUNS = {
    "phase": "Running",
    "generation": 1,
    "admittedAt": "2026-11-24T01:00:00Z",
    "priority": 0,
    "assignment": {"gpuPool": "h100", "nodes": ["n1"]},
}


def asked(change: Change, *more: Json, gpus: int = 8) -> WhatIfAnswer:
    """Of three nodes, a queue with a quota of one, a job that has it and one that waits for it."""
    objects = (
        *(a_node(f"n{number}") for number in (1, 2, 3)),
        a_pool(),
        a_queue(gpus),
        a_class("urgent", 1000),
        a_job("runs", status=RUNS),
        a_job("waits"),
        *more,
    )
    known = what_if.baseline(documents(objects, as_of=NOW), policy=read_policy(None))
    return what_if.answer(known, change)


def of(answer: WhatIfAnswer, job: str) -> ChangedDecision:
    return next(each for each in answer.changed if each.job == job)


def test_a_queue_with_more_quota_starts_what_waits() -> None:
    answer = asked(MoreQuota(queue="q", pool="h100", gpus=8))
    row = of(answer, "team/waits")
    assert row.now is not None
    assert row.then is not None
    assert (row.now.verdict, row.then.verdict) == (JobVerdict.WAITS, JobVerdict.PLACED)
    assert row.now.reason == "QuotaExhausted"
    assert not row.asked


def test_quota_in_a_pool_that_the_queue_does_not_have_yet_counts_too() -> None:
    pool = a_pool("other")
    pool["spec"] = {"nodeSelector": {"gpu": "other"}}
    node = a_node("o1")
    node["metadata"]["labels"]["gpu"] = "other"
    waits = a_job("elsewhere", gpuPool="other", priorityClassName="urgent")
    answer = asked(MoreQuota(queue="q", pool="other", gpus=8), pool, node, waits)
    then = of(answer, "team/elsewhere").then
    assert then is not None
    assert (then.verdict, then.nodes) == (JobVerdict.PLACED, ("o1",))


def test_quota_that_helps_nobody_changes_nothing() -> None:
    answer = asked(MoreQuota(queue="q", pool="h100", gpus=4))
    assert (answer.changed, answer.unchanged) == ((), 1)


@pytest.mark.parametrize(
    ("quota", "leaves"),
    [
        ({"nominalGpus": 8}, True),
        ({"nominalGpus": 0, "nominalPercent": 34}, True),
        ({"nominalGpus": 16}, False),
    ],
)
def test_less_quota_names_the_jobs_that_their_queue_would_take_back(
    quota: Json, *, leaves: bool
) -> None:
    """The operator has written 8 GPUs (34 % of 24) into the status."""
    queue = a_queue(8)
    queue["spec"] |= {"quotas": [{"gpuPool": "h100", **quota}], "aboveQuota": "Evict"}
    queue["status"] = {"usage": [{"gpuPool": "h100", "nominalGpus": 8, "usedGpus": 8}]}
    answer = asked(MoreQuota(queue="q", pool="h100", gpus=-8), queue)
    rows = [each for each in answer.changed if each.job == "team/runs"]
    verdicts = [(each.then.verdict, each.then.reason) for each in rows if each.then is not None]
    assert verdicts == ([(JobVerdict.LEAVES, "QuotaLowered")] if leaves else [])


def test_a_job_that_asks_for_more_waits_for_more() -> None:
    answer = asked(OtherSize(job="team/waits", nodes=2), gpus=16)
    row = of(answer, "team/waits")
    assert answer.changed[0] is row
    assert row.asked
    assert row.now is not None
    assert row.then is not None
    assert (row.now.verdict, row.now.pods) == (JobVerdict.PLACED, 1)
    assert (row.then.verdict, row.then.pods) == (JobVerdict.WAITS, 2)


def test_a_job_of_higher_priority_names_its_victim() -> None:
    answer = asked(OtherSize(job="team/waits", priority="urgent"))
    victim = of(answer, "team/runs")
    assert victim.now is None
    assert victim.then is not None
    assert (victim.then.verdict, victim.then.by) == (JobVerdict.PREEMPTED, "team/waits")


def test_a_job_that_runs_is_asked_about_as_if_it_were_queued_again() -> None:
    answer = asked(OtherSize(job="team/runs", nodes=2))
    then = of(answer, "team/runs").then
    assert then is not None
    assert (then.verdict, then.reason) == (JobVerdict.WAITS, "ExceedsQuota")
    freed = of(answer, "team/waits").then
    assert freed is not None
    assert freed.verdict is JobVerdict.PLACED


def test_one_job_more_is_placed_where_there_is_room() -> None:
    answer = asked(NewJob(queue="q", nodes=1, gpus_per_node=8), gpus=24)
    row = answer.changed[0]
    assert (row.job, row.asked, row.now) == ("default/what-if", True, None)
    assert row.then is not None
    assert row.then.verdict is JobVerdict.PLACED


def test_one_job_more_comes_from_a_namespace_that_the_queue_takes() -> None:
    queue = a_queue(24, name="closed", namespaces=["tenant"])
    answer = asked(NewJob(queue="closed", nodes=1, gpus_per_node=8), queue)
    row = answer.changed[0]
    assert row.job == "tenant/what-if"
    assert row.then is not None
    assert row.then.verdict is JobVerdict.PLACED


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (MoreQuota(queue="none", pool="h100", gpus=8), "no trainingqueue none"),
        (OtherSize(job="team/none", nodes=1), "no trainingjob team/none"),
        (NewJob(queue="none", nodes=1, gpus_per_node=8), "no trainingqueue none"),
        (OtherSize(job="team/waits", nodes=0), "the cluster: team/waits: spec.nodes"),
    ],
)
def test_a_question_about_nothing_is_refused(change: Change, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        asked(change)


def a_line(waiting: int) -> what_if.Baseline:
    """A job runs on one of two nodes, and some more wait for its quota."""
    objects = (
        *(a_node(f"n{number}") for number in (1, 2)),
        a_pool(),
        a_queue(8, namespaces=["team"]),
        a_class("urgent", 1000),
        a_job("runs", status=RUNS),
        *(a_job(f"waits-{number}") for number in range(waiting)),
    )
    return what_if.baseline(documents(objects, as_of=LATER), policy=read_policy(None))


def test_an_answer_is_the_same_when_nothing_of_the_baseline_is_used_again() -> None:
    known = a_line(3)
    bare = replace(known, seen=replace(known.seen, known_jobs=KnownJobs()))
    for change in (
        MoreQuota(queue="q", pool="h100", gpus=8),
        OtherSize(job="team/waits-2", nodes=2),
        OtherSize(job="team/runs", nodes=1),
        NewJob(queue="q", nodes=1, gpus_per_node=8, priority="urgent"),
        NewJob(queue="q", nodes=1, gpus_per_node=4),
    ):
        fresh = what_if.answer(replace(bare, futures=KnownFutures()), change)
        assert what_if.answer(known, change) == fresh


def test_a_job_at_the_end_of_a_long_line_changes_no_simulated_future() -> None:
    known = a_line(LINE + 1)
    made_of = known.futures.made_of
    last = what_if.answer(known, NewJob(queue="q", nodes=1, gpus_per_node=8)).changed[0]
    assert last.then is not None
    assert known.futures.made_of is made_of


def test_an_exception_on_one_job_is_named_and_changes_no_other_answer() -> None:
    """A forecast raises on a running job, so no row would show it."""
    change, other = MoreQuota(queue="q", pool="h100", gpus=0), a_job("waits-too")
    expected = asked(change, other)
    place = Place(owner=ForecastCluster, method="_end_with_work", uids=first_held)
    with planted(place, "team/runs"):
        answer = asked(change, other)
    assert answer.changed == expected.changed
    [remark] = answer.remarks
    assert not missing(remark, "team/runs", "forecast", "PlantedError: planted")


def test_an_exception_on_a_job_that_waits_is_its_answer() -> None:
    place = Place(owner=Admission, method="admit", uids=first_gang)
    with planted(place, "team/waits"):
        answer = asked(MoreQuota(queue="q", pool="h100", gpus=8), a_job("waits-too"))
    started = of(answer, "team/waits-too").then
    assert started is not None
    assert started.verdict is JobVerdict.PLACED, "as if the other one did not exist"
    assert all(each.job != "team/waits" for each in answer.changed), "it waits now and then"


def test_an_exception_on_the_alternatives_of_a_job_leaves_those_of_others() -> None:
    pool = a_pool()
    pool["spec"]["capacity"] = {"pricePerGpuHour": "2"}
    objects = (
        *(a_node(f"n{number}") for number in (1, 2, 3)),
        pool,
        a_queue(8),
        a_class("urgent", 1000),
        a_job("runs", status=RUNS),
        *(a_job(name) for name in ("waits", "waits-too")),
    )
    policy, faults = read_policy(None), list[GangFault]()
    seen = cluster.read(documents(objects, as_of=NOW), policy=policy)
    place = Place(owner=alternatives._World, method="_shrink", uids=first_gang)
    with planted(place, "team/waits"):
        rows = decided(seen, policy, forecast=True, priced=True, on_fault=faults.append)
    by_job = {row.job: row.alternatives for row in rows if row.verdict is JobVerdict.WAITS}
    assert not by_job["team/waits"]
    assert by_job["team/waits-too"]
    assert [(fault.key, fault.stage) for fault in faults] == [("team/waits", "alternatives")]
