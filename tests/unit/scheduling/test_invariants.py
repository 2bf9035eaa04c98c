"""The predicates find each kind of violation: a checker that sees nothing proves nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline.scheduling import Decisions, Gang, Placed, Queue, Resources, Snapshot
from drumline.scheduling.invariants import violations
from tests.unit.scheduling.builders import admitted, cluster, gang, racks, run

N0, N1, N2, N3 = racks()
SNAPSHOT = cluster(N0, N1, N2, N3)
PAIR = gang("a", nodes=2, gpus=2, required_level="rack")


def placed(one: Gang, *assignment: str, **changes: object) -> Decisions:
    good = Placed(key=one.key, uid=one.uid, pool="h100", assignment=assignment)
    return Decisions(placed=(replace(good, **changes),))  # pyright: ignore[reportArgumentType]


def found(snapshot: Snapshot, one: Gang, decisions: Decisions) -> tuple[str, ...]:
    return violations(snapshot=snapshot, pending=[one], decisions=decisions)


def test_a_right_decision_violates_nothing() -> None:
    assert found(SNAPSHOT, PAIR, placed(PAIR, "n0", "n1")) == ()


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
    sentences = found(snapshot, PAIR, replace(decisions))
    assert any(words in sentence for sentence in sentences), sentences


def test_a_repair_that_moves_another_place_is_named() -> None:
    broken = admitted(gang("a", nodes=2, gpus=2), "n0", "x", lost=frozenset({1}))
    snapshot = cluster(N0, N1, N2, running=[broken])
    right = run(snapshot)
    assert violations(snapshot=snapshot, pending=[], decisions=right) == ()
    moved = Decisions(placed=(replace(right.placed[0], assignment=("n2", "n1")),))
    assert violations(snapshot=snapshot, pending=[], decisions=moved) == (
        "training/a is moved from places that it had not lost",
    )


def test_a_repair_outside_of_the_required_rack_is_named() -> None:
    broken = admitted(PAIR, "n0", "x", lost=frozenset({1}))
    snapshot = cluster(N0, N1, N2, running=[broken])
    right = run(snapshot)
    assert violations(snapshot=snapshot, pending=[], decisions=right) == ()
    outside = Decisions(placed=(replace(right.placed[0], assignment=("n0", "n2")),))
    assert violations(snapshot=snapshot, pending=[], decisions=outside) == (
        "training/a requires one rack and is repaired outside of it",
    )


def test_an_answer_that_nobody_asked_for_is_named() -> None:
    twice = replace(run(SNAPSHOT, PAIR), blocked=run(SNAPSHOT, gang("b", gpus=9)).blocked)
    assert found(SNAPSHOT, PAIR, twice) == ("uid-b was not asked for",)
