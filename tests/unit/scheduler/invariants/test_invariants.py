"""The predicates find each kind of violation: a checker that sees nothing proves nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import (
    Decisions,
    Gang,
    Placed,
    PreemptionRule,
    Queue,
    Reclaim,
    Resized,
    Resources,
    Snapshot,
)
from tests.property.invariants import violations
from tests.texts import missing
from tests.unit.scheduler.builders import admitted, after, cluster, gang, pod, queue, racks, run

N0, N1, N2, N3 = racks()
SNAPSHOT = cluster(N0, N1, N2, N3)
PAIR = gang("a", nodes=2, gpus=2, required_level="rack")


def placed(item: Gang, *assignment: str, **changes: object) -> Decisions:
    good = Placed(key=item.key, uid=item.uid, pool="h100", assignment=assignment)
    return Decisions(placed=(replace(good, **changes),))  # pyright: ignore[reportArgumentType]


def violations_of(snapshot: Snapshot, item: Gang, decisions: Decisions) -> tuple[str, ...]:
    return violations(snapshot=snapshot, pending=[item], decisions=decisions)


def test_a_right_decision_violates_nothing() -> None:
    assert violations_of(SNAPSHOT, PAIR, placed(PAIR, "n0", "n1")) == ()


@pytest.mark.parametrize(
    ("snapshot", "decisions", "words"),
    [
        (SNAPSHOT, placed(PAIR, "n0", "n2"), "requires one rack and is spread"),
        (SNAPSHOT, placed(PAIR, "n0", "n0"), "node n0 is given"),
        (SNAPSHOT, placed(PAIR, "n0"), "gets 1 of 2 places"),
        (SNAPSHOT, Decisions(), "uid-a is answered 0 times"),
        (SNAPSHOT, placed(PAIR, "n0", "n1", uid="uid-a", pool="x"), "is no node of x"),
        (cluster(replace(N0, unschedulable=True), N1), placed(PAIR, "n0", "n1"), "closed to it"),
        (
            cluster(replace(N0, used=Resources(gpus=1)), N1),
            placed(PAIR, "n0", "n1"),
            "node n0 is given",
        ),
        (
            cluster(N0, N1, running=[admitted(gang("r"), "n0", reserved=frozenset({0}))]),
            placed(PAIR, "n0", "n1"),
            "node n0 is given",
        ),
        (
            cluster(N0, N1, queues=(Queue(name="research", nominal={"h100": 3}),)),
            placed(PAIR, "n0", "n1"),
            "queue research holds 4 GPUs of pool h100, above",
        ),
    ],
)
def test_a_wrong_decision_is_named(snapshot: Snapshot, decisions: Decisions, words: str) -> None:
    sentences = violations_of(snapshot, PAIR, replace(decisions))
    assert any(words in sentence for sentence in sentences), sentences


def test_a_repair_that_moves_another_place_is_named() -> None:
    broken = admitted(gang("a", nodes=2, gpus=2), "n0", "x", lost=frozenset({1}))
    snapshot = cluster(N0, N1, N2, running=[broken])
    right = run(snapshot)
    assert violations(snapshot=snapshot, pending=[], decisions=right) == ()
    moved = Decisions(placed=(replace(right.placed[0], assignment=("n2", "n1")),))
    (problem,) = violations(snapshot=snapshot, pending=[], decisions=moved)
    assert not missing(problem, "training/a", "moved")


def test_a_repair_outside_of_the_required_rack_is_named() -> None:
    broken = admitted(PAIR, "n0", "x", lost=frozenset({1}))
    snapshot = cluster(N0, N1, N2, running=[broken])
    right = run(snapshot)
    assert violations(snapshot=snapshot, pending=[], decisions=right) == ()
    outside = Decisions(placed=(replace(right.placed[0], assignment=("n0", "n2")),))
    (problem,) = violations(snapshot=snapshot, pending=[], decisions=outside)
    assert not missing(problem, "training/a", "rack", "repaired")


def test_a_gang_that_grows_and_has_to_leave_is_named() -> None:
    both = Resized(key="training/low", uid="uid-low", pool="h100", kept=(0,), added=("n1",))
    sentences = violations_of(BUSY, HIGH, replace(SENT, resized=(both,)))
    assert "uid-low is told 2 things" in sentences


def test_an_answer_that_nobody_asked_for_is_named() -> None:
    twice = replace(run(SNAPSHOT, PAIR), blocked=run(SNAPSHOT, gang("b", gpus=9)).blocked)
    (problem,) = violations_of(SNAPSHOT, PAIR, twice)
    assert not missing(problem, "uid-b")


LOW = admitted(gang("low", gpus=2), "n0")
HIGH = gang("high", gpus=2, priority=5)
BUSY = cluster(N0, N1, running=[LOW, admitted(gang("other", gpus=2), "n1")], queues=(
    queue("research", 4),))  # fmt: skip
SENT = run(BUSY, HIGH)
COHORT = (queue("org"), queue("a", 2, parent="org"), queue("b", 2, parent="org"))


def with_preemption(**changes: object) -> Decisions:
    """The right decision, with one thing changed in its preemption."""
    wrong = replace(SENT.preemptions[0], **changes)  # pyright: ignore[reportArgumentType]
    return replace(SENT, preemptions=(wrong,))


def test_a_right_preemption_violates_nothing() -> None:
    assert [victim.key for victim in SENT.preemptions[0].victims] == ["training/low"]
    assert violations_of(BUSY, HIGH, SENT) == ()


def test_a_victim_that_starts_in_the_future_by_another_leaders_clock_is_none_too_early() -> None:
    ahead = tuple(replace(held, admitted_at=held.admitted_at + 600) for held in BUSY.admitted)
    snapshot = replace(BUSY, admitted=ahead)
    decisions = run(snapshot, HIGH)
    assert decisions.preemptions
    assert violations_of(snapshot, HIGH, decisions) == ()


@pytest.mark.parametrize(
    ("snapshot", "decisions", "words"),
    [
        (BUSY, with_preemption(victims=()), "does not lower the potential"),
        (BUSY, with_preemption(victims=()), "above its nominal quota"),
        (BUSY, with_preemption(assignment=("n1",)), "waits in vain for n1"),
        (
            replace(BUSY, admitted=tuple(replace(h, leaving=True) for h in BUSY.admitted)),
            SENT,
            "training/low leaves already",
        ),
        (
            replace(BUSY, admitted=tuple(replace(h, preemptible=False) for h in BUSY.admitted)),
            SENT,
            "training/low may not be sent away",
        ),
        (
            replace(BUSY, queues=(queue("research", 4, min_runtime_seconds=1.0),)),
            SENT,
            "training/low has not run long enough",
        ),
        (
            replace(BUSY, queues=(Queue(name="research", nominal={"h100": 4}),)),
            SENT,
            "its queue sends nobody away",
        ),
        (
            replace(
                BUSY,
                admitted=tuple(replace(h, gang=replace(h.gang, priority=5)) for h in BUSY.admitted),
            ),
            SENT,
            "training/low has no lower priority",
        ),
    ],
)
def test_a_wrong_preemption_is_named(snapshot: Snapshot, decisions: Decisions, words: str) -> None:
    sentences = violations_of(snapshot, HIGH, decisions)
    assert any(words in sentence for sentence in sentences), sentences


def reclaim(queues: tuple[Queue, ...], gpus: int) -> tuple[str, ...]:
    """What is said of a preemption in which queue b takes a node from queue a."""
    running = [admitted(gang(f"a{i}", gpus=2, queue="a"), f"n{i}") for i in range(2)]
    snapshot = cluster(N0, N1, running=running, queues=queues)
    asks = gang("x", gpus=gpus, queue="b")
    right = run(cluster(N0, N1, running=running, queues=COHORT), replace(asks, per_pod=pod(2)))
    assert len(right.preemptions) == 1
    return violations_of(snapshot, asks, right)


def test_a_lawful_reclaim_violates_nothing() -> None:
    assert reclaim(COHORT, 2) == ()


@pytest.mark.parametrize(
    ("queues", "words"),
    [
        ((COHORT[0], queue("a", 4, parent="org"), COHORT[2]), "2 reclaimed of 0 that a borrowed"),
        (
            (COHORT[0], queue("a", 3, parent="org"), queue("b", 1, parent="org")),
            "although b borrows",
        ),
        (COHORT[1:], "nothing to reclaim from training/a0"),
    ],
    ids=["nothing borrowed", "not entitled", "no cohort"],
)
def test_an_unlawful_reclaim_is_named(queues: tuple[Queue, ...], words: str) -> None:
    sentences = reclaim(queues, 2)
    assert any(words in sentence for sentence in sentences), sentences


def test_a_cohort_above_its_members_quota_is_named() -> None:
    running = [admitted(gang("a0", gpus=2, queue="a"), "n0")]
    snapshot = cluster(N0, N1, N2, running=running, queues=COHORT)
    item = gang("x", nodes=2, gpus=2, queue="b")
    (problem,) = violations_of(snapshot, item, placed(item, "n1", "n2"))
    assert not missing(problem, "queue org", "6 GPUs", "pool h100", "quota")
    limited = (*COHORT[:2], replace(COHORT[2], borrowing_limit={"h100": 1}))
    snapshot = cluster(N0, N1, queues=limited)
    (problem,) = violations_of(snapshot, item, placed(item, "n0", "n1"))
    assert not missing(problem, "queue b", "4 GPUs", "pool h100", "quota", "1")


ELASTIC = gang("e", nodes=4, gpus=2, sizes=(1, 2, 4))


@pytest.mark.parametrize(
    ("kept", "added", "words"),
    [
        ((0,), ("n1", "n2"), "goes from 2 to 3 pods"),
        ((0, 1), (), "goes from 2 to 2 pods"),
        ((0, 1), ("n2", "n3"), "keeps places that it had lost"),
        ((0,), ("n1", "n2", "n3"), "grows while it leaves or is broken"),
    ],
)
def test_a_wrong_size_is_named(kept: tuple[int, ...], added: tuple[str, ...], words: str) -> None:
    broken = admitted(ELASTIC, "n0", "x", lost=frozenset({1}))
    snapshot = cluster(N0, N1, N2, N3, running=[broken])
    wrong = Resized(key="training/e", uid="uid-e", pool="h100", kept=kept, added=added)
    sentences = violations(snapshot=snapshot, pending=[], decisions=Decisions(resized=(wrong,)))
    assert any(words in sentence for sentence in sentences), sentences


def test_a_user_above_his_cap_is_named() -> None:
    capped = (queue("research", 9, user_limit={"h100": 3}),)
    held = admitted(gang("r", nodes=2, user="u"), "n2", "n2")
    snapshot = cluster(N0, N1, N2, queues=capped, running=[held])
    mine, other = gang("a", nodes=2, user="u"), gang("b", nodes=2, user="v")
    (problem,) = violations_of(snapshot, mine, placed(mine, "n0", "n0"))
    assert not missing(problem, "'u'", "4 GPUs", "pool h100", "queue research", "3")
    assert violations_of(snapshot, other, placed(other, "n0", "n0")) == ()


def test_one_who_starts_by_borrowing_what_another_is_entitled_to_is_named() -> None:
    snapshot = cluster(N0, N1, N2, queues=COHORT)
    greedy = [gang(f"g{i}", queue="a", at=i) for i in range(4)]
    entitled = gang("x", queue="b", at=9)
    right = run(snapshot, *greedy, entitled)
    assert violations(snapshot=snapshot, pending=[*greedy, entitled], decisions=right) == ()
    alone = run(snapshot, *greedy)
    peaceful = tuple(replace(each, preemption=PreemptionRule()) for each in COHORT)
    full = replace(after(snapshot, greedy, alone), queues=peaceful)
    refused = run(full, entitled).blocked
    wrong = replace(alone, blocked=refused, order=(*alone.order, entitled.uid))
    sentences = violations(snapshot=snapshot, pending=[*greedy, entitled], decisions=wrong)
    # The first two stay within their queue's quota when they start.
    assert [missing(s, f"training/g{i}", "training/x") for i, s in enumerate(sentences, 2)] == [
        [],
        [],
    ]


FAIR = PreemptionRule(reclaim=Reclaim.FAIR_SHARE)


@pytest.mark.parametrize(
    ("weight", "nominal", "words"),
    [
        (1.0, 0, None),
        (0.5, 0, "a has less than b afterwards"),
        (1.0, 3, "a falls below its quota for one that borrows"),
    ],
)
def test_a_reclaim_by_fair_share_is_judged_by_what_both_have_then(
    weight: float, nominal: int, words: str | None
) -> None:
    queues = (
        queue("org", 4 - nominal),
        queue("a", nominal, parent="org"),
        queue("b", parent="org", preemption=FAIR, weight=weight),
    )
    sentences = reclaim(queues, 2)
    assert not sentences if words is None else any(words in sentence for sentence in sentences), (
        sentences
    )


def test_what_a_gang_holds_beside_its_places_counts_in_its_queue() -> None:
    """Pods of a job that was deleted run on: another one starts above the quota."""
    remains = replace(admitted(gang("gone"), "n2"), preemptible=False, is_residual=True)
    small = queue("research", nominal={"h100": remains.gpus + PAIR.gpus - 1})
    snapshot = cluster(N0, N1, N2, N3, running=[remains], queues=(small,))
    (problem,) = violations_of(snapshot, PAIR, placed(PAIR, "n0", "n1"))
    assert "above its nominal quota" in problem
    assert not run(snapshot, PAIR).placed


def test_no_gang_runs_above_the_priority_that_its_queue_allows() -> None:
    proud = admitted(gang("proud", priority=7), "n2")
    snapshot = cluster(N0, N1, N2, N3, running=[proud], queues=(queue("research", max_priority=6),))
    (problem,) = violations(snapshot=snapshot, pending=[], decisions=Decisions())
    assert "runs with priority 7, above the 6" in problem
