"""Whether a start would be refused, by the facts that are known before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline.lifecycle.manifests.named_objects import NamedObject
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.readiness import as_written
from drumline.lifecycle.plan.claims import missing_claim
from drumline.lifecycle.plan.quota_headroom import PlannedObjects, PlannedPods, QuotaFacts
from drumline.lifecycle.plan.start_check import (
    StartDoubt,
    StartFacts,
    StartRefusal,
    failed_start_of,
    refusal_of_start,
    remedy_of_refusal,
)
from drumline_api.conditions import Phase
from tests.builders import T0, a_job, admitted, with_status
from tests.texts import missing

JOB = a_job()
KEYS = NamedObject("Secret", "keys")


def pods(count: int) -> PlannedObjects:
    return PlannedObjects(pods=(PlannedPods(count=count),))


def quota(hard: int, used: int = 0, *, resource: str = "pods") -> QuotaFacts:
    return QuotaFacts(name="few", hard={resource: hard}, used={resource: used})


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"namespace_terminates": True}, ("namespace", "being deleted")),
        ({"claim": missing_claim("dta")}, ("dta", "not found")),
        (
            {"missing": (KEYS,), "pull_secrets": ("keys",)},
            ("image pull secret", "keys", "not found"),
        ),
        ({"missing": (KEYS,)}, ('secret "keys" not found',)),
        ({"missing": (NamedObject("ConfigMap", "code"),)}, ('configmap "code" not found',)),
        ({"child_refusal": "Secret: exceeded quota: few"}, ("objects beside", "exceeded quota")),
        (
            {"child_refusal": "exceeded quota", "refusal": "exceeded quota", "replaces": True},
            ("objects beside", "exceeded quota"),
        ),
        ({"refusal": 'violates PodSecurity "restricted"'}, ("PodSecurity",)),
        ({"quotas": (quota(3),), "requested": pods(4)}, ("few", "pods", "4", "3")),
        ({"quotas": (quota(8, 5),), "requested": pods(4)}, ("few", "5 of 8")),
        (
            {"quotas": (quota(4, 4),), "requested": pods(4), "freed": pods(3)},
            ("few", "1 of 4"),
        ),
    ],
)
def test_a_start_that_would_be_refused_has_a_reason_and_a_remedy(
    facts: dict[str, Any], words: tuple[str, ...]
) -> None:
    refusal = refusal_of_start(JOB, StartFacts(**facts))
    assert isinstance(refusal, StartRefusal)
    assert not missing(refusal.message, *words)
    assert refusal.remedy


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"quotas": (quota(4),), "requested": pods(4)},
        {"quotas": (quota(0, resource="services"),), "requested": pods(4)},
        {"quotas": (quota(3),), "requested": pods(4), "replaces": True},
        {"refusal": "exceeded quota: few", "replaces": True},
        {"quotas": (quota(4, 4),), "requested": pods(4), "freed": pods(4)},
        {"refusal": "exceeded quota: few", "freed": pods(4)},
    ],
)
def test_a_start_that_nothing_speaks_against_is_allowed(facts: dict[str, Any]) -> None:
    assert refusal_of_start(JOB, StartFacts(**facts)) is None


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("exceeded quota: few, requested: pods=1", "ResourceQuota"),
        ("Invalid value: must be less than or equal to memory limit of 512Mi", "LimitRange"),
        ("maximum memory usage per Container is 1Gi, but limit is 2Gi", "LimitRange"),
        ('violates PodSecurity "baseline:latest"', "Pod Security"),
        ('admission webhook "policy" denied the request', "webhook"),
        ('error looking up service account a/b: serviceaccount "b" not found', "ServiceAccount"),
        ("no PriorityClass with name training was found", "PriorityClass"),
        ('pod rejected: RuntimeClass "kata" not found', "RuntimeClass"),
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


def failed_with(incident: str) -> Job:
    return with_status(JOB, FAILED_ONCE.status.model_copy(update={"incident": incident}))


@pytest.mark.parametrize(
    "incident",
    [
        "ResourceQuota few has no room for the whole gang",
        'persistentvolumeclaim "data" not found',
        "the API server would refuse its pods: no",
        '1 of 2 pods are not running: a on n: CreateContainerConfigError: secret "keys" not found',
    ],
)
def test_a_cause_that_the_check_sees_is_left_to_the_check(incident: str) -> None:
    assert not failed_start_of(failed_with(incident))


@pytest.mark.parametrize(
    "incident", ["the API server rejected its pods: no", "couldn't find key a in Secret team/keys"]
)
def test_a_cause_that_no_check_sees_keeps_a_job_from_evictions(incident: str) -> None:
    assert not missing(failed_start_of(failed_with(incident)), incident)


def test_a_start_is_in_doubt_until_the_object_that_it_lacked_is_seen() -> None:
    job = failed_with('FailedMount: secret "keys" not found')
    doubt = refusal_of_start(job, StartFacts(unknown=(KEYS,)))
    assert isinstance(doubt, StartDoubt)
    assert not missing(doubt.message, "last start failed", "keys")
    assert refusal_of_start(job, StartFacts()) is None
    assert refusal_of_start(JOB, StartFacts(unknown=(KEYS,))) is None
    other = failed_with('FailedMount: configmap "keys" not found')
    assert refusal_of_start(other, StartFacts(unknown=(KEYS,))) is None


@pytest.mark.parametrize(("generation", "count"), [(1, 1), (2, None)])
def test_failed_starts_are_counted_for_one_spec(generation: int, count: int | None) -> None:
    status = FAILED_ONCE.status.model_copy(
        update={"observed_generation": 1, "phase": Phase.PENDING, "reason": "InsufficientGpus"}
    )
    job = replace(with_status(JOB, status), object_generation=generation)
    assert as_written(job, job.status, now=T0).failed_starts == count
