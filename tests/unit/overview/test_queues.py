"""Queues with their lines, and shares by weight at each level of a cohort."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.overview.jobs import job_rows
from drumline.overview.nodes import node_rows
from drumline.overview.queues import queue_rows, quota_rows, share_rows, whole_line
from drumline.overview.rows import BudgetRow
from drumline.overview.why import why_card
from drumline_cli.overview import tables
from drumline_console.top.screen import TopRows, render
from drumline_console.ui import pages
from tests.texts import missing
from tests.unit.overview.objects import (
    FORBIDDEN,
    NOW,
    a_cluster,
    a_job,
    a_node,
    a_pool,
    a_queue,
    at,
    running,
)

WAITS = {"phase": "Pending", "reason": "QuotaExhausted"}


def had(seconds: int) -> dict[str, object]:
    return {"shareSeconds": seconds, "shareSecondsAt": at(-60)}


def test_a_queue_has_its_quota_its_jobs_and_its_line() -> None:
    cluster = a_cluster(
        a_queue("research", gpus=32),
        a_queue("idle"),
        a_job("runs", status=running()),
        a_job("second", status={**WAITS, "queuedAt": at(-5)}),
        a_job("first", spec={"nodes": 2}, status={**WAITS, "queuedAt": at(-9)}),
        a_job("lost", spec={"queue": "nowhere"}),
    )
    idle, nowhere, research = queue_rows(cluster)
    assert [row.queue for row in (idle, nowhere, research)] == ["idle", "nowhere", "research"]
    assert [(row.name, row.position) for row in research.waiting] == [("first", 1), ("second", 2)]
    assert (research.admitted_jobs, research.waiting_gpus) == (1, 24)
    (quota,) = research.quotas
    assert (quota.pool, quota.nominal_gpus, quota.used_gpus) == ("gpus", 32, 8)
    assert (nowhere.quotas, len(nowhere.waiting)) == ((), 1)
    assert [row.queue for row in queue_rows(cluster, only="idle")] == ["idle"]
    assert queue_rows(cluster, only="none") == ()


def test_what_a_job_holds_in_two_pools_counts_in_each() -> None:
    held = running()
    places = {
        "gpuPool": "gpus",
        "nodes": ["a", "b", "c"],
        "surplus": {"gpuPool": "spot", "indices": [1, 2]},
    }
    job = a_job("runs", spec={"nodes": 3}, status={**held, "assignment": places})
    cluster = a_cluster(a_queue("research", gpus=32), job)
    (row,) = queue_rows(cluster)
    assert {quota.pool: quota.used_gpus for quota in row.quotas} == {"gpus": 8, "spot": 16}
    (shown,) = job_rows(cluster.jobs, now=NOW, places={})
    assert (shown.pool, shown.surplus_pool) == ("gpus", "spot")


def test_what_waits_beside_jobs_has_its_place_and_its_reason_on_the_page_and_in_the_terminal() -> (
    None
):
    waits = {"gpus": 4, "reason": "QuotaExhausted", "message": "needs <4>"}
    status = {
        "pendingWorkloads": 17,
        "waitingWorkloads": [
            {
                "workload": "team/pods/notebook",
                "position": 2,
                "queuedAt": at(-3600),
                "expectedStart": at(600),
                "expectedStartBy": at(5400),
                **waits,
            },
            {"workload": "team/pods/crew", **waits},
        ],
    }
    (row,) = queue_rows(a_cluster(a_queue("research", status=status)))
    assert (row.workloads, [each.position for each in row.waiting_workloads]) == (17, [2, None])
    text = tables.queues([row], now=NOW)
    lines = [line.split() for line in text.splitlines()]
    assert lines[2][:4] == ["2", "team/pods/notebook", "4", "1"]
    assert "in 10 min to 1 h 30 min" in text
    assert lines[3][:2] == ["-", "team/pods/crew"]
    assert "  and 15 other workloads more" in text
    page = pages.overview(a_cluster(a_queue("research", status=status)))
    assert not missing(page, "17", "queue research")
    assert "needs &lt;4&gt;" in page


def test_jobs_and_other_workloads_stand_in_one_line() -> None:
    pod = {"gpus": 1, "reason": "QuotaExhausted", "message": ""}
    status = {
        "pendingWorkloads": 4,
        "waitingWorkloads": [
            {"workload": "team/pods/first", "position": 1, **pod},
            {"workload": "team/jobs/third", "position": 3, **pod},
            {"workload": "team/pods/last", "position": 9, **pod},
            {"workload": "team/pods/half", **pod},
        ],
    }
    cluster = a_cluster(a_queue("research", status=status), a_job("a"), a_job("b"))
    (row,) = queue_rows(cluster)
    assert [(each.position, each.name) for each in whole_line(row)] == [
        (1, "team/pods/first"),
        (2, "team/a"),
        (3, "team/jobs/third"),
        (4, "team/b"),
        (9, "team/pods/last"),  # five more jobs wait that this reader may not see
        (None, "team/pods/half"),
    ]


@pytest.mark.parametrize(
    ("policy", "jobs", "said"),
    [
        ("None", 1, ""),
        ("Hold", 1, "held, nothing starts"),
        ("HoldAndDrain", 2, "drains, 2 jobs still have to leave"),
        ("HoldAndDrain", 1, "drains, 1 job still has to leave"),
        ("HoldAndDrain", 0, "drained, nothing starts"),
    ],
)
def test_a_queue_that_is_stopped_says_how_far_it_is(policy: str, jobs: int, said: str) -> None:
    queue = a_queue("research")
    queue["spec"]["stopPolicy"] = policy
    running_jobs = [a_job(f"job-{number}", status=running()) for number in range(jobs)]
    (row,) = queue_rows(a_cluster(queue, *running_jobs))
    assert (row.stop_policy, tables.stop_text(row)) == (policy, said)
    assert tables.queues([row], now=NOW).startswith(f"research: {said and f'{said}; '}")


def test_the_operators_figure_counts_pods_beside_the_places() -> None:
    usage = [{"gpuPool": "gpus", "nominalGpus": 16, "usedGpus": 12}]
    cluster = a_cluster(a_queue("research", status={"usage": usage}), a_job("x", status=running()))
    ((quota,),) = (row.quotas for row in queue_rows(cluster))
    assert (quota.used_gpus, quota.foreign_gpus) == (12, 0)


def test_what_foreign_pods_hold_of_it_is_said_apart() -> None:
    usage = [{"gpuPool": "gpus", "nominalGpus": 16, "usedGpus": 12, "foreignGpus": 4}]
    cluster = a_cluster(a_queue("research", status={"usage": usage}), a_job("x", status=running()))
    (row,) = queue_rows(cluster)
    assert [(quota.used_gpus, quota.foreign_gpus) for quota in row.quotas] == [(12, 4)]


def test_a_budget_is_shown_with_what_is_spent() -> None:
    budget = {"gpuHours": 100, "windowDays": 30}
    days = [{"day": "2024-09-30", "gpuSeconds": 324_000}]
    spent = {"spentGpuHours": 90, "until": at(-60), "days": days}
    cluster = a_cluster(
        a_queue("new", budget=budget),
        a_queue("none"),
        a_queue("used", budget=budget, status={"budget": spent}),
    )
    fresh, none, used = (row.budget for row in queue_rows(cluster))
    assert (fresh, none) == (BudgetRow(gpu_hours=100, window_days=30, spent_gpu_hours=0), None)
    assert used is not None
    assert (used.gpu_hours, used.window_days, used.spent_gpu_hours) == (100, 30, 90)


def test_a_job_that_has_ended_is_no_holder_and_runs_no_more() -> None:
    over = running(phase="Succeeded", finishedAt=at(-60))
    cluster = a_cluster(a_queue("research"), a_job("over", status=over), a_job("waits"))
    (row,) = queue_rows(cluster)
    assert (row.admitted_jobs, row.quotas[0].used_gpus) == (0, 0)
    assert why_card(cluster, cluster.jobs[1]).holders == ()
    nodes = a_cluster(a_pool(), a_node("node-1"), a_job("over", status=over))
    assert [(node.held_gpus, node.jobs) for node in node_rows(nodes)] == [(0, ())]


def test_borrowed_is_what_is_beyond_the_quota_of_each_pool() -> None:
    cluster = a_cluster(a_queue("research", gpus=4), a_job("x", status=running()))
    (row,) = share_rows(cluster)
    assert (row.nominal_gpus, row.used_gpus, row.borrowed_gpus) == (4, 8, 4)


def test_dues_follow_the_weights_of_each_level_and_sum_to_all() -> None:
    cluster = a_cluster(
        a_queue("all", gpus=0),
        a_queue("lab", parent="all", weight=3),
        a_queue("nlp", parent="lab", weight=2, status=had(100)),
        a_queue("vision", parent="lab", weight=1, status=had(300)),
        a_queue("alone", status=had(5)),
    )
    dues = {row.queue: row.due for row in share_rows(cluster)}
    assert dues == {"alone": 1.0, "all": 0.0, "lab": 0.0, "nlp": 0.6667, "vision": 0.3333}
    nlp = next(row for row in share_rows(cluster) if row.queue == "nlp")
    assert (nlp.cohort, nlp.had, nlp.owed) == ("all", 0.25, 0.4167)


@pytest.mark.parametrize("status", [WAITS, running()])
def test_jobs_of_a_parent_count_as_a_member_of_weight_1(status: dict[str, Any]) -> None:
    cluster = a_cluster(
        a_queue("all", gpus=0),
        a_queue("nlp", parent="all", weight=2),
        a_queue("vision", parent="all"),
        a_job("own", spec={"queue": "all"}, status=status),
    )
    dues = {row.queue: row.due for row in share_rows(cluster)}
    assert dues == {"all": 0.25, "nlp": 0.5, "vision": 0.25}


def test_a_share_names_the_pools_that_it_adds_up() -> None:
    usage = [{"gpuPool": "h100", "usedGpus": 56}, {"gpuPool": "lab", "usedGpus": 4}]
    cluster = a_cluster(
        a_pool("h100"), a_pool("lab", shareWeight=2), a_queue("nlp", status={"usage": usage})
    )
    (row,) = share_rows(cluster)
    assert [(part.pool, part.gpus, part.weight) for part in row.parts] == [
        ("h100", 56, 1),
        ("lab", 4, 2),
    ]
    assert "nlp: 64 = 56 of h100 x 1 + 4 of lab x 2" in tables.shares((row,), now=NOW)


@pytest.mark.parametrize("parent", ["missing", "b"])
def test_a_queue_whose_parent_is_missing_or_its_own_ancestor_stands_alone(parent: str) -> None:
    cluster = a_cluster(a_queue("a", parent=parent), a_queue("b", parent="a"))
    first = share_rows(cluster)[0]
    assert (first.queue, first.cohort) == ("a", "a")


def test_the_next_job_of_a_queue_is_named_with_its_start() -> None:
    status = {**WAITS, "expectedStart": at(60), "expectedStartBy": at(90)}
    (row,) = share_rows(a_cluster(a_queue("research"), a_job("next", status=status)))
    assert (row.next_job, row.waiting_jobs, row.had) == ("team/next", 1, None)
    assert (row.next_start, row.next_start_by) == (NOW + 60, NOW + 90)


def test_a_quota_that_the_reader_may_not_read_is_not_0() -> None:
    cluster = a_cluster(a_job("runs", status=running()), unread=FORBIDDEN)
    (quota,) = quota_rows(cluster, None, held={"gpus": 8})
    said = tables.quota_sentence(quota)
    assert not missing(said, "8 GPUs of gpus held", "not readable by you")


def test_who_may_read_queues_and_pools_is_told_that_one_is_gone() -> None:
    """An administrator once read "not readable by you" for a deleted queue."""
    cluster = a_cluster(a_job("runs", status=running()), unread={})
    ((queue,), (share,)) = queue_rows(cluster), share_rows(cluster)
    card = why_card(cluster, cluster.jobs[0])
    top = TopRows(as_of=NOW, jobs=(), nodes=(), queues=(queue,))
    shown = {
        "queue": tables.queues((queue,), now=NOW),
        "share": tables.shares((share,), now=NOW),
        "why": tables.why(card, now=NOW),
        "top": "\n".join(render(top, width=200)),
        "page": pages.overview(cluster),
    }
    assert not {name for name, text in shown.items() if "does not exist (deleted?)" not in text}
    assert not {name for name, text in shown.items() if "readable" in text}
    for name in ("queue", "why", "page"):
        assert not missing(shown[name], "the pool does not exist")


def test_share_and_queue_show_a_queue_that_the_reader_may_not_read() -> None:
    waits = a_job("waits", spec={"queue": "hidden"}, status=WAITS)
    cluster = a_cluster(
        *(a_queue("nlp"), a_job("runs", spec={"queue": "secret"}, status=running()), waits),
        unread=FORBIDDEN,
    )
    shown = {row.queue: (row.used_gpus, row.absent) for row in share_rows(cluster)}
    hidden = FORBIDDEN["TrainingQueue"]
    assert shown == {"nlp": (0, ""), "hidden": (0, hidden), "secret": (8, hidden)}
    _, nlp, hidden, secret, remark, *_ = tables.shares(share_rows(cluster), now=NOW).splitlines()
    assert "?" not in nlp
    assert hidden.split()[2:] == ["0/?", "?", "?", "?", "-", "-", "team/waits,", "not", "known"]
    assert secret.split()[2:8] == ["8/?", "?", "?", "?", "-", "-"]
    assert not missing(remark, "not readable by you", "hidden", "secret")
    said = tables.queues(queue_rows(cluster), now=NOW)
    assert said.count("not readable by you") == 2


def test_the_order_without_priority_classes_is_that_of_the_statuses() -> None:
    jobs = [
        a_job(name, spec={"priorityClassName": name}, status={**WAITS, "priority": priority})
        for name, priority in (("low", 1), ("high", 9), ("middle", 5))
    ]
    (row,) = queue_rows(a_cluster(*jobs))
    assert [each.name for each in row.waiting] == ["high", "middle", "low"]


def test_a_job_that_the_operator_has_not_seen_has_no_reason_behind_its_place() -> None:
    cluster = a_cluster(a_queue("research"), a_job("new", status={}))
    (queue,) = queue_rows(cluster)
    assert not tables.detail(queue.waiting[0], now=NOW).rstrip().endswith(":")
