"""Whether a start would be refused, by the facts that are known before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline.lifecycle.model.readiness import as_written
from drumline.lifecycle.plan.claims import missing_claim
from drumline.lifecycle.plan.start_check import (
    QuotaFacts,
    StartFacts,
    failed_start_of,
    quota_amounts,
    refusal_of_start,
    remedy_of_refusal,
)
from drumline_api.conditions import Phase
from tests.builders import T0, a_job, admitted, with_status
from tests.texts import missing

JOB = a_job()


def quota(hard: int, used: int = 0, *, resource: str = "pods") -> QuotaFacts:
    return QuotaFacts(name="few", hard={resource: hard}, used={resource: used})


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"namespace_terminates": True}, ("namespace", "being deleted")),
        ({"claim": missing_claim("dta")}, ("dta", "not found")),
        ({"missing_secrets": ("registry",)}, ("registry", "not found")),
        ({"refusal": 'violates PodSecurity "restricted"'}, ("PodSecurity",)),
        ({"quotas": (quota(3),), "requested": {"pods": 4}}, ("few", "pods", "4", "3")),
        ({"quotas": (quota(8, 5),), "requested": {"pods": 4}}, ("few", "5 of 8")),
        (
            {"quotas": (quota(4, 4),), "requested": {"pods": 4}, "freed": {"pods": 3}},
            ("few", "1 of 4"),
        ),
    ],
)
def test_a_start_that_would_be_refused_has_a_reason_and_a_remedy(
    facts: dict[str, Any], words: tuple[str, ...]
) -> None:
    refusal = refusal_of_start(JOB, StartFacts(**facts))
    assert refusal is not None
    assert not missing(refusal.message, *words)
    assert refusal.remedy


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"quotas": (quota(4),), "requested": {"pods": 4}},
        {"quotas": (quota(0, resource="services"),), "requested": {"pods": 4}},
        {"quotas": (quota(3),), "requested": {"pods": 4}, "replaces": True},
        {"refusal": "exceeded quota: few", "replaces": True},
        {"quotas": (quota(4, 4),), "requested": {"pods": 4}, "freed": {"pods": 4}},
        {"refusal": "exceeded quota: few", "freed": {"pods": 4}},
    ],
)
def test_a_start_that_nothing_speaks_against_is_allowed(facts: dict[str, Any]) -> None:
    assert refusal_of_start(JOB, StartFacts(**facts)) is None


def test_a_quota_counts_the_whole_gang_under_each_of_its_names() -> None:
    pods: list[tuple[int, dict[str, int], dict[str, int]]] = [
        (3, {"cpu": 2000, "nvidia.com/gpu": 8}, {"cpu": 4000}),
        (1, {"cpu": 500, "hugepages-2Mi": 7}, {}),
    ]
    assert quota_amounts(pods) == {
        "pods": 4,
        "count/pods": 4,
        "cpu": 6500,
        "requests.cpu": 6500,
        "requests.nvidia.com/gpu": 24,
        "limits.cpu": 12_000,
        "hugepages-2Mi": 7,
        "requests.hugepages-2Mi": 7,
    }


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("exceeded quota: few, requested: pods=1", "ResourceQuota"),
        ("Invalid value: must be less than or equal to memory limit of 512Mi", "LimitRange"),
        ("maximum memory usage per Container is 1Gi, but limit is 2Gi", "LimitRange"),
        ('violates PodSecurity "baseline:latest"', "Pod Security"),
        ('admission webhook "policy" denied the request', "webhook"),
    ],
)
def test_each_kind_of_refusal_has_its_own_remedy(words: str, remedy: str) -> None:
    assert not missing(remedy_of_refusal(words), remedy)


FAILED_ONCE = with_status(
    JOB, JOB.status.model_copy(update={"failed_starts": 1, "incident": "no pod came up"})
)


def test_a_job_whose_last_start_failed_says_so_until_its_spec_changes() -> None:
    observed = FAILED_ONCE.status.model_copy(update={"observed_generation": 1})
    job = replace(with_status(JOB, observed), object_generation=1)
    assert not missing(failed_start_of(job), "no pod came up")
    assert not failed_start_of(replace(job, object_generation=2))
    assert not failed_start_of(JOB)
    assert not failed_start_of(with_status(admitted(JOB), admitted(JOB).status))


@pytest.mark.parametrize(("generation", "count"), [(1, 1), (2, None)])
def test_failed_starts_are_counted_for_one_spec(generation: int, count: int | None) -> None:
    status = FAILED_ONCE.status.model_copy(
        update={"observed_generation": 1, "phase": Phase.PENDING, "reason": "InsufficientGpus"}
    )
    job = replace(with_status(JOB, status), object_generation=generation)
    assert as_written(job, job.status, now=T0).failed_starts == count
