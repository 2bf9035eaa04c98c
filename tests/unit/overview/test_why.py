"""Why a job waits: its place, those before it, who holds what it needs, what to do."""

from __future__ import annotations

import re
from typing import Any

import pytest

from drumline.overview.advice import BY_REASON, ENDED, SUSPEND_FIRST, advice_for
from drumline.overview.objects import ClusterObjects
from drumline.overview.rows import WhyCard
from drumline.overview.why import SHOWN, why_card
from drumline_api.mutability import ONLY_WHILE_SUSPENDED
from drumline_cli.overview import tables
from tests.texts import missing
from tests.unit.overview.objects import (
    NOW,
    a_cluster,
    a_job,
    a_node,
    a_pod,
    a_pool,
    a_queue,
    at,
    running,
)

NEW_JOBS = {
    *("RestartsExhausted", "NoProgress", "ActiveDeadlineExceeded", "CorruptCheckpoint"),
    *("StartFailed", "StartDeadlineExceeded"),
}
"""Reasons of jobs that have ended: a new job has the other field."""
WORDS = {"nodes", "queue", "after", "group", "user", "checkpoint"}
"""Fields whose names are words, too."""


def card_of(cluster: ClusterObjects, name: str) -> WhyCard:
    return why_card(cluster, next(job for job in cluster.jobs if job.metadata.name == name))


def waiting(name: str, since: float, **spec: Any) -> dict[str, Any]:
    status = {"phase": "Pending", "reason": "QuotaExhausted", "queuedAt": at(since)}
    return a_job(name, spec=spec, status=status)


def test_a_card_has_those_before_the_job_and_those_who_hold_its_gpus() -> None:
    cluster = a_cluster(
        a_queue("research"),
        a_job("long", status=running(expectedEnd=at(900))),
        a_job("open", spec={"queue": "other"}, status=running()),
        a_job("short", status=running(expectedEnd=at(30))),
        a_job("elsewhere", status=running(assignment={"gpuPool": "b", "nodes": ["x"]})),
        waiting("first", -50, nodes=2),
        waiting("second", -40),
        waiting("mine", -30),
        waiting("behind", -20),
    )
    card = card_of(cluster, "mine")
    assert (card.job.position, card.waiting_jobs, card.gpus_ahead) == (3, 4, 24)
    assert [row.name for row in card.ahead] == ["first", "second"]
    assert [(row.job, row.expected_end) for row in card.holders] == [
        ("team/short", NOW + 30),
        ("team/long", NOW + 900),
    ]
    assert card.advice[0].startswith("Wait, stop one of the named holders")


def test_lists_are_short_and_the_sum_counts_all() -> None:
    jobs = [waiting(f"job-{number:02}", number - 100) for number in range(SHOWN + 5)]
    card = card_of(a_cluster(*jobs), f"job-{SHOWN + 4}")
    assert len(card.ahead) == SHOWN
    assert card.gpus_ahead == 8 * (SHOWN + 4)


def test_a_job_that_runs_has_nobody_before_it() -> None:
    card = card_of(a_cluster(a_job("runs", status=running()), waiting("waits", -5)), "runs")
    assert (card.ahead, card.holders, card.job.position) == ((), (), None)


def test_what_only_a_suspended_spec_can_change_says_so_first_to_who_is_not() -> None:
    status = {"phase": "Pending", "reason": "QueueNotFound"}
    awake, asleep = a_job("awake", status=status), a_job("asleep", status=status)
    asleep["spec"]["suspend"] = True
    cluster = a_cluster(awake, asleep)
    first, then = card_of(cluster, "awake").advice
    assert first == SUSPEND_FIRST
    assert card_of(cluster, "asleep").advice == (then,)


def test_a_job_that_has_failed_is_corrected_in_a_copy() -> None:
    failed = a_job("failed", status={"phase": "Failed", "reason": "ConfigRefused"})
    first, *_ = card_of(a_cluster(failed), "failed").advice
    assert first == ENDED


@pytest.mark.parametrize("reason", sorted(BY_REASON.keys() - NEW_JOBS))
def test_advice_about_a_field_that_a_pending_job_cannot_change_says_to_suspend_first(
    reason: str,
) -> None:
    """`api.mutability` has the fields."""
    words = set(re.findall(r"[A-Za-z]+", BY_REASON[reason]))
    named = words & {*ONLY_WHILE_SUSPENDED, "claimName", "progress"} - WORDS
    if named or "another queue" in BY_REASON[reason]:
        assert SUSPEND_FIRST in advice_for(reason, suspended=False), named


def two_pools() -> list[dict[str, Any]]:
    """Queue team has 8 GPUs of each pool; a job holds those of big, a pod those of lab."""
    queue = a_queue("team")
    queue["spec"]["quotas"] = [{"gpuPool": pool, "nominalGpus": 8} for pool in ("big", "lab")]
    held = running(assignment={"gpuPool": "big", "nodes": ["b0"]})
    return [
        queue,
        a_pool("big"),
        a_pool("lab"),
        a_node("b0", pool="big"),
        a_node("l0", pool="lab"),
        a_job("on-big", spec={"queue": "team"}, status=held),
        a_pod("chat", queue="team", gpus=8, spec={"nodeName": "l0"}),
        waiting("wants-big", -50, queue="team", gpuPool="big"),
        waiting("wants-either", -40, queue="team", gpuPools=["lab", "big"]),
        waiting("wants-lab", -30, queue="team", gpuPool="lab"),
    ]


def test_holders_and_predecessors_are_those_of_pools_that_the_job_may_use() -> None:
    cluster = a_cluster(*two_pools())
    lab, either = card_of(cluster, "wants-lab"), card_of(cluster, "wants-either")
    assert [(row.job, row.gpus) for row in lab.holders] == [("team/pods/chat", 8)]
    assert [row.name for row in lab.ahead] == ["wants-either"]
    assert (lab.gpus_ahead, lab.job.position, lab.ahead[0].position) == (8, 3, 2)
    assert {row.job for row in either.holders} == {"team/pods/chat", "team/on-big"}
    assert [row.job for row in card_of(cluster, "wants-big").holders] == ["team/on-big"]


@pytest.mark.parametrize("reason", ["ExceedsQuota", "QueueHeld", "WaitingForJobs", "BudgetSpent"])
def test_a_job_that_waits_for_no_gpus_has_no_holders(reason: str) -> None:
    objects = two_pools()
    objects[-1]["status"]["reason"] = reason
    assert card_of(a_cluster(*objects), "wants-lab").holders == ()


def test_holders_of_a_quota_are_those_of_the_cohort() -> None:
    cluster = a_cluster(
        a_queue("lab"),
        a_queue("research", parent="lab"),
        a_queue("vision", parent="lab"),
        a_queue("alone"),
        a_job("ours", spec={"queue": "vision"}, status=running()),
        a_job("theirs", spec={"queue": "alone"}, status=running()),
        waiting("waits", -10),
    )
    assert [row.job for row in card_of(cluster, "waits").holders] == ["team/ours"]


def unlabelled(name: str, *, gpus: int = 1, node: str = "node-1", queue: str = "") -> Any:
    spec = {"nodeName": node}
    return a_pod(name, gpus=gpus, queue=queue, spec=spec, metadata={"namespace": "ml"})


def test_pods_that_name_no_queue_are_named_with_their_gpus_and_node() -> None:
    chats = [unlabelled(f"chat-{number:02}") for number in range(SHOWN + 10)]
    cluster = a_cluster(
        *(a_queue("research"), a_pool(), a_node("node-1"), a_pool("b"), a_node("far", pool="b")),
        *(unlabelled("notebook", gpus=4), unlabelled("elsewhere", node="far"), *chats),
        # A pod whose queue pays is a holder. A queue that does not exist pays for nothing.
        *(unlabelled("paid", gpus=2, queue="research"), unlabelled("lost", queue="nowhere")),
        a_job("mine", status={"phase": "Pending", "reason": "InsufficientGpus"}),
        a_job("owner", status={"phase": "Pending", "reason": "QuotaExhausted"}),
        a_job("runs", status=running()),
    )
    card = card_of(cluster, "mine")
    assert [row.job for row in card.holders] == ["team/runs", "ml/pods/paid"]
    first = card.foreign_pods[0]
    assert (first.pod, first.gpus, first.node) == ("ml/notebook", 4, "node-1")
    assert (len(card.foreign_pods), card.more_foreign_pods) == (SHOWN, 12)
    said = tables.why(card, now=NOW)
    assert not missing(said, "ml/notebook, 4 GPUs, on node-1", "and 12 more")
    assert missing(said, "elsewhere")
    # No pod without a payer holds quota of a cohort.
    assert card_of(cluster, "owner").foreign_pods == ()
    assert card_of(cluster, "runs").foreign_pods == ()
