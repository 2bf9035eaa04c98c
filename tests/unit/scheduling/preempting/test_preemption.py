"""In which pool somebody leaves, and what a broken gang is asked to have quota for."""

from __future__ import annotations

from drumline.scheduling import Policy
from tests.unit.scheduling.builders import admitted, cluster, gang, node, queue, racks, run

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
        assert (preemption.pool, [one.key for one in preemption.victims]) == (
            "h100",
            ["training/cheap"],
        )


def test_a_repair_counts_the_places_that_are_left_against_the_quota() -> None:
    """The quota was lowered to 3 since: 2 GPUs that it has and 2 that it lost are too many."""
    broken = gang("b", nodes=2, gpus=2, priority=5)
    running = [
        admitted(broken, "n0", "gone", lost=frozenset({1})),
        admitted(gang("low", gpus=2), "n1"),
    ]
    may = Policy(repairs_preempt=True)
    snapshot = cluster(*racks(count=1), running=running, queues=(queue("research", 3),))
    assert run(snapshot, policy=may).preemptions == ()
    enough = cluster(*racks(count=1), running=running, queues=(queue("research", 4),))
    assert [one.key for one in run(enough, policy=may).preemptions[0].victims] == ["training/low"]
