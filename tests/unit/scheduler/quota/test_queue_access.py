"""Who may use a queue, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import BlockReason, Queue, Remedy, RemedyKind, rejections
from drumline_scheduler.model import Obstacle, ObstacleKind
from tests.texts import missing
from tests.unit.scheduler.builders import admitted, cluster, gang, node, run

HELD = Queue(name="research", nominal={"h100": 100}, held=True)


def test_nothing_of_a_held_queue_starts_and_others_do() -> None:
    other = Queue(name="other", nominal={"h100": 100})
    snapshot = cluster(node("n0"), node("n1"), queues=(HELD, other))
    decisions = run(snapshot, gang("waits"), gang("starts", queue="other", at=1.0))
    assert [placed.key for placed in decisions.placed] == ["training/starts"]
    (blocked,) = decisions.blocked
    assert blocked.reason is BlockReason.QUEUE_HELD
    assert not missing(blocked.message, "queue research", "stopPolicy")
    opened = replace(snapshot, queues=(replace(HELD, held=False), other))
    assert len(run(opened, gang("waits")).placed) == 1


def test_what_runs_in_a_held_queue_is_repaired() -> None:
    held = admitted(gang("runs", nodes=2, gpus=2), "n0", "gone", lost=frozenset({1}))
    snapshot = cluster(node("n0"), node("n1"), queues=(HELD,), running=(held,))
    (placed,) = run(snapshot).placed
    assert (placed.key, placed.replaced) == ("training/runs", (1,))


def test_nodes_that_were_kept_for_a_gang_of_a_held_queue_are_free_again() -> None:
    nominee = gang("waits", gpus=2, nominated=("n0",), nominated_pool="h100")
    other = Queue(name="other", nominal={"h100": 100})
    snapshot = cluster(node("n0"), queues=(HELD, other))
    decisions = run(snapshot, nominee, gang("starts", gpus=2, queue="other", at=1.0))
    assert [placed.key for placed in decisions.placed] == ["training/starts"]


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"namespaces": frozenset({"lab"})}, BlockReason.NAMESPACE_NOT_ALLOWED),
        ({"max_priority": -1}, BlockReason.PRIORITY_TOO_HIGH),
    ],
)
def test_what_does_not_end_with_the_hold_is_said_first(
    limits: dict[str, object], reason: BlockReason
) -> None:
    queue = replace(HELD, **limits)  # type: ignore[arg-type]
    (blocked,) = run(cluster(node("n0"), queues=(queue,)), gang("waits")).blocked
    assert blocked.reason is reason


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (ObstacleKind.NAMESPACE_ENDS, BlockReason.NAMESPACE_TERMINATING),
        (ObstacleKind.CLAIM_IN_USE, BlockReason.CLAIM_IN_USE),
    ],
)
def test_a_gang_with_an_obstacle_gets_no_place(kind: ObstacleKind, reason: BlockReason) -> None:
    obstacle = Obstacle(kind=kind, message="why it cannot start")
    ending = gang("ends", gpus=2, priority=9, obstacle=obstacle)
    (blocked,) = run(cluster(node("n0", gpus=2)), ending).blocked
    assert (blocked.reason, blocked.message) == (reason, "why it cannot start")
    without_queue = run(cluster(node("n0", gpus=2), queues=()), ending).blocked
    assert [each.reason for each in without_queue] == [reason]
    alike = replace(ending, priority=0)  # both differ in the obstacle alone
    decisions = run(cluster(node("n0", gpus=2)), alike, gang("stays", gpus=2, at=1.0))
    assert [placed.key for placed in decisions.placed] == ["training/stays"]
    low = admitted(gang("runs", gpus=2), "n0")
    assert run(cluster(node("n0", gpus=2), running=(low,)), ending).preemptions == ()
    kept = replace(ending, nominated=("n0",), nominated_pool="h100")
    decisions = run(cluster(node("n0", gpus=2)), kept, gang("stays", gpus=2, at=1.0))
    assert [placed.key for placed in decisions.placed] == ["training/stays"]


def test_the_nearest_of_many_queues_is_named() -> None:
    """Only some names are compared letter by letter: a tenant writes any number of wrong ones."""
    names = [f"team-{index}" for index in range(300)]
    queues = tuple(Queue(name=name, nominal={"h100": 1}) for name in (*names, "research"))
    (blocked,) = run(cluster(node("n0"), queues=queues), gang("a", queue="reserch")).blocked
    assert blocked.reason is BlockReason.QUEUE_NOT_FOUND
    assert blocked.remedy == Remedy(kind=RemedyKind.CORRECT_NAME, where="research")


def test_a_wrong_name_is_compared_with_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def likeness(wrong: str, right: str) -> float:
        compared.append(wrong)
        return float(len(right))

    monkeypatch.setattr(rejections, "_likeness", likeness)
    queues = tuple(Queue(name=f"other-{index}", nominal={"h100": 1}) for index in range(500))
    jobs = [gang(f"j{index}", queue=f"wrong-{index}") for index in range(50)]
    for _ in range(2):  # the second cycle compares nothing again
        run(cluster(node("n0"), queues=queues), *jobs)
    assert len(compared) <= 8 * len(jobs)
