"""Who may use a queue, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import BlockReason, Queue
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
