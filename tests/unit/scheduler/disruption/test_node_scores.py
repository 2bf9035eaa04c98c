"""What is said of nodes, what follows from it, and what a single tenant can never bring about."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_scheduler.disruption.node_scores import (
    FORGOTTEN_SECONDS,
    HOUR_SECONDS,
    MAX_EVIDENCE,
    MAX_NODES,
    MAX_NODES_OF_WITNESS,
    Evidence,
    EvidenceKind,
    HealthByNode,
    News,
    NodeHealth,
    NodeStanding,
    PoolRules,
    judged,
    score,
    sentence,
    standing,
)
from tests.texts import missing

NOW = 1_000 * HOUR_SECONDS
POOL = PoolRules(nodes=[f"n{i}" for i in range(10)])
SLOW_FOR_A = Evidence(node="n1", kind=EvidenceKind.SLOW, at=NOW, by="team-a", detail="by 20 %")
SLOW_FOR_B = replace(SLOW_FOR_A, by="team-b")
FAILED = Evidence(node="n1", kind=EvidenceKind.CHECK_FAILED, at=NOW, detail="matmul wrong")


def judge(
    *evidence: Evidence,
    before: HealthByNode | None = None,
    passed: dict[str, float] | None = None,
    rules: PoolRules = POOL,
    now: float = NOW,
) -> HealthByNode:
    news = News(evidence=evidence, passed=passed or {})
    return judged(before or {}, news, rules=rules, now=now)


def quarantined(health: HealthByNode) -> list[str]:
    return [node for node, each in health.items() if each.quarantined_at is not None]


def test_slow_in_jobs_of_two_tenants_is_the_node_and_of_one_may_be_the_job() -> None:
    assert quarantined(judge(SLOW_FOR_A)) == []
    assert standing(judge(SLOW_FOR_A)["n1"], now=NOW) == NodeStanding(suspicion=1)
    both = judge(SLOW_FOR_A, SLOW_FOR_B)
    assert both == {"n1": NodeHealth(evidence=(SLOW_FOR_A, SLOW_FOR_B), quarantined_at=NOW)}
    assert standing(both["n1"], now=NOW) == NodeStanding(quarantined=True, suspicion=2)


def test_a_failed_check_is_enough_and_a_later_one_that_passes_clears_the_node() -> None:
    health = judge(FAILED)
    assert quarantined(health) == ["n1"]
    later = NOW + 60
    assert judge(before=health, passed={"n1": later}, now=later) == {}
    failed_again = replace(FAILED, at=later + 60)
    again = judge(failed_again, before=health, passed={"n1": later}, now=later + 60)
    assert quarantined(again) == ["n1"]


def test_what_is_said_in_the_hour_of_a_check_and_after_it_stays_known() -> None:
    passed = {"n1": NOW + 1_800}
    late = replace(SLOW_FOR_A, at=NOW + 2_700)
    health = judge(late, passed=passed, now=NOW + 2_700)
    assert health.keys() == {"n1"}
    again = replace(late, at=NOW + 2_800)
    assert judge(again, before=health, passed=passed, now=NOW + 2_800) == health
    assert judge(before=health, passed=passed, now=NOW + 3_600) == health


def test_two_tenants_keep_a_node_out_for_twelve_hours_after_their_last_word() -> None:
    health = judge(SLOW_FOR_A, SLOW_FOR_B)
    for hour in range(1, 12):
        health = judge(before=health, now=NOW + hour * HOUR_SECONDS)
        assert quarantined(health) == ["n1"]
        assert health["n1"].quarantined_at == NOW
    assert quarantined(judge(before=health, now=NOW + 12 * HOUR_SECONDS)) == []
    assert judge(before=health, now=NOW + FORGOTTEN_SECONDS) == {}
    # One of them goes on to say so: the other's word fades all the same.
    later = NOW + FORGOTTEN_SECONDS
    assert quarantined(judge(replace(SLOW_FOR_A, at=later), before=health, now=later)) == []


def test_evidence_that_comes_every_second_changes_what_is_known_once_an_hour() -> None:
    health = judge(SLOW_FOR_A)
    within = replace(SLOW_FOR_A, at=NOW + 3_599)
    assert judge(within, before=health, now=NOW + 3_599) == health
    assert judge(replace(within, at=NOW + 3_600), before=health, now=NOW + 3_600) != health


@pytest.mark.parametrize(("nodes", "most"), [(4, 0), (5, 1), (9, 1), (10, 2), (100, 20)])
def test_a_fifth_of_a_pool_rounded_down_is_quarantined_at_most(nodes: int, most: int) -> None:
    names = [f"n{i:02}" for i in range(nodes)]
    failed = [replace(FAILED, node=name) for name in names]
    health = judge(*failed, rules=PoolRules(nodes=names))
    assert quarantined(health) == names[:most]


def test_the_owner_of_a_pool_allows_less_or_trusts_a_node() -> None:
    assert quarantined(judge(FAILED, rules=replace(POOL, quarantine_percent=9))) == []
    assert quarantined(judge(FAILED, rules=replace(POOL, trusted=["n1"]))) == []
    percent = replace(POOL, quarantine_percent=100)
    assert percent.most_quarantined == 2


def test_the_worst_nodes_are_quarantined_first() -> None:
    slow = [replace(each, node=f"n{i}") for i in range(5) for each in (SLOW_FOR_A, SLOW_FOR_B)]
    health = judge(*slow, replace(SLOW_FOR_A, node="n4", by="team-c"))
    assert quarantined(health) == ["n0", "n4"]


def test_a_tenant_speaks_of_eight_nodes_at_most_and_a_check_of_all() -> None:
    names = [f"n{i}" for i in range(100)]
    rules = PoolRules(nodes=names)
    assert len(judge(*(replace(SLOW_FOR_A, node=name) for name in names), rules=rules)) == (
        MAX_NODES_OF_WITNESS
    )
    assert len(judge(*(replace(FAILED, node=name) for name in names), rules=rules)) == MAX_NODES
    many = [replace(SLOW_FOR_A, by=f"team-{i}") for i in range(100)]
    assert len(judge(*many, FAILED)["n1"].evidence) == MAX_EVIDENCE
    assert judge(*many, FAILED)["n1"].evidence[0] == FAILED


def test_nodes_of_other_pools_and_the_future_do_not_count() -> None:
    assert judge(replace(FAILED, node="elsewhere")) == {}
    assert judge(replace(FAILED, at=NOW + 1e9)) == judge(FAILED)


def test_what_speaks_against_a_node_in_words() -> None:
    health = judge(SLOW_FOR_A, FAILED)["n1"]
    assert not missing(sentence(health), "CheckFailed", "Slow", "20 %")


FEW = settings(deadline=None, max_examples=40, derandomize=True)
_EVIDENCE = st.builds(
    Evidence,
    node=st.sampled_from([*POOL.nodes, "elsewhere"]),
    kind=st.sampled_from([EvidenceKind.SLOW, EvidenceKind.DEVICE_FAILED]),
    at=st.floats(min_value=NOW - 2 * FORGOTTEN_SECONDS, max_value=NOW + FORGOTTEN_SECONDS),
    by=st.sampled_from(["team-a", "team-b", "team-c"]),
    detail=st.sampled_from(["", "by 20 %", "by 30 %"]),
)
_CHECKS = st.builds(replace, _EVIDENCE, kind=st.just(EvidenceKind.CHECK_FAILED), by=st.just(""))
_SEVERAL = st.lists(st.one_of(_EVIDENCE, _CHECKS), max_size=15)
_HOURS = st.lists(st.integers(min_value=0, max_value=30), min_size=1, max_size=5)


@FEW
@given(looks=st.lists(_SEVERAL, min_size=1, max_size=4), hours=_HOURS)
def test_never_more_than_a_fifth_is_quarantined_whatever_comes(
    looks: list[list[Evidence]], hours: list[int]
) -> None:
    health: HealthByNode = {}
    now = NOW
    for look, passed in zip(looks, hours, strict=False):
        now += passed * HOUR_SECONDS
        health = judge(*look, before=health, now=now)
        assert len(quarantined(health)) <= 2
        assert set(health) <= set(POOL.nodes)


@FEW
@given(looks=st.lists(st.lists(_EVIDENCE, max_size=15), min_size=1, max_size=4), hours=_HOURS)
def test_one_tenant_quarantines_nothing_whatever_its_jobs_say_and_when(
    looks: list[list[Evidence]], hours: list[int]
) -> None:
    health: HealthByNode = {}
    now = NOW
    for look, passed in zip(looks, hours, strict=False):
        now += passed * HOUR_SECONDS
        alone = [replace(each, by="team-a") for each in look]
        health = judge(*alone, before=health, now=now)
        assert quarantined(health) == []


@FEW
@given(looks=st.lists(st.lists(_EVIDENCE, max_size=15), min_size=1, max_size=4))
def test_one_tenant_keeps_a_node_out_for_a_day_at_most_after_the_others_last_word(
    looks: list[list[Evidence]],
) -> None:
    health, now = judge(SLOW_FOR_A, SLOW_FOR_B, FAILED), NOW
    for look in looks:
        now += 24 * HOUR_SECONDS / len(looks)
        goes_on = replace(SLOW_FOR_A, at=now)
        alone = [replace(each, by="team-a") for each in look]
        health = judge(goes_on, *alone, before=health, now=now)
        assert ("n1" in quarantined(health)) is (now < NOW + 24 * HOUR_SECONDS)


@FEW
@given(evidence=_SEVERAL, data=st.data())
def test_the_order_of_evidence_decides_nothing(
    evidence: list[Evidence], data: st.DataObject
) -> None:
    health = judge(*evidence)
    assert judge(*data.draw(st.permutations(evidence))) == health
    assert judge(*evidence, before=health) == health


@FEW
@given(evidence=_SEVERAL, hours=st.integers(min_value=0, max_value=100))
def test_without_news_scores_fall_and_nothing_new_is_quarantined(
    evidence: list[Evidence], hours: int
) -> None:
    past = [replace(each, at=min(each.at, NOW)) for each in evidence]
    health, later = judge(*past), NOW + hours * HOUR_SECONDS
    after = judge(before=health, now=later)
    assert set(after) <= set(health)
    assert set(quarantined(after)) <= set(quarantined(health))
    for node, each in after.items():
        assert score(each.evidence, now=later) <= score(health[node].evidence, now=NOW)
