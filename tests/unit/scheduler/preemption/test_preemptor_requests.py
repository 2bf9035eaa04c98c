"""In which pool somebody leaves, and what a broken gang is asked to have quota for."""

from __future__ import annotations

from drumline_scheduler import Policy
from tests.unit.scheduler.builders import admitted, cluster, gang, node, queue, racks, run

POOLS = ("a100", "h100")


def test_of_several_pools_that_one_is_chosen_in_which_the_least_is_lost() -> None:
    running = [
        admitted(gang("dear", gpus=2), "a", pool="a100", gpu_seconds_at_risk=900.0),
        admitted(gang("cheap", gpus=2), "h", pool="h100", gpu_seconds_at_risk=100.0),
    ]
    nodes = (node("a", "rack-0", pool="a100"), node("h", "rack-0", pool="h100"))
    queues = (queue("research", nominal={"a100": 2, "h100": 2}),)
    snapshot = cluster(*nodes, running=running, queues=queues, pools=POOLS)
    for order in (POOLS, POOLS[::-1]):
        asks = gang("x", gpus=2, priority=5, pools=order)
        (preemption,) = run(snapshot, asks).preemptions
        assert (preemption.pool, [victim.key for victim in preemption.victims]) == (
            "h100",
            ["training/cheap"],
        )


def test_a_borrower_is_repaired_with_what_its_victim_had_borrowed() -> None:
    """What it has not lost it borrows already: with its victim gone nobody borrows more."""
    broken = gang("b", nodes=2, gpus=2, priority=5, queue="a")
    running = [
        admitted(broken, "n0", "gone", lost=frozenset({1})),
        admitted(gang("low", gpus=2, queue="a"), "n1"),
    ]
    queues = (queue("org", 6), queue("a", 0, parent="org"))
    snapshot = cluster(*racks(count=1), running=running, queues=queues)
    (preemption,) = run(snapshot, policy=Policy(repairs_preempt=True)).preemptions
    assert [victim.key for victim in preemption.victims] == ["training/low"]
    assert preemption.assignment == ("n0", "n1")
