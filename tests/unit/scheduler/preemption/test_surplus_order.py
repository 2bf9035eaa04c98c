"""Which pods of an elastic gang leave first."""

from __future__ import annotations

from drumline_scheduler import Admitted, Policy
from tests.unit.scheduler.builders import admitted, cluster, gang, node, queue, run

SURPLUS = Policy(surplus=True)


def test_the_pods_leave_first_whose_room_helps() -> None:
    """Only the first node is open to the waiting gang; else the last pod would leave."""
    elastic = admitted(gang("e", nodes=2, gpus=2, sizes=(1, 2)), "n0", "n1")
    nodes = (node("n0", "rack-0", labels={"zone": "a"}), node("n1", "rack-1"))
    snapshot = cluster(*nodes, running=[elastic], queues=(queue("research", 100),))
    asks = gang("x", gpus=2, priority=5, required_level="rack", selector={"zone": "a"})
    (preemption,) = run(snapshot, asks, policy=SURPLUS).preemptions
    assert [(victim.key, victim.kept) for victim in preemption.victims] == [("training/e", (1,))]
    assert preemption.assignment == ("n0",)


def test_all_of_an_elastic_gang_goes_where_that_costs_less_than_a_rigid_one() -> None:
    """Its rest costs less than its surplus, which leaves first all the same: 220 beside 240."""
    elastic = gang("e", nodes=3, sizes=(1, 3))
    running = [
        admitted(elastic, "n0", "n0", "n0", gpu_seconds_at_risk=40.0),
        admitted(gang("a", gpus=4), "n1"),
    ]
    nodes = [node(f"n{i}", "rack-0", gpus=4) for i in range(3)]
    snapshot = cluster(*nodes, running=running, queues=(queue("research", 7),))
    (preemption,) = run(snapshot, gang("x", gpus=3, priority=5), policy=SURPLUS).preemptions
    assert [(victim.key, victim.kept) for victim in preemption.victims] == [("training/e", ())]


def test_each_gpu_of_the_pods_that_leave_costs_its_restart() -> None:
    """A pod of two GPUs is dearer than a whole gang of one that has a little to lose."""
    running = [
        admitted(gang("e", nodes=2, gpus=2, sizes=(1, 2)), "n0", "n1"),
        admitted(gang("r"), "n2", gpu_seconds_at_risk=30.0),
    ]
    nodes = (*(node(f"n{i}", "rack-0") for i in range(2)), node("n2", "rack-0", gpus=1))
    snapshot = cluster(*nodes, running=running, queues=(queue("research", 100),))
    (preemption,) = run(snapshot, gang("x", priority=5), policy=SURPLUS).preemptions
    assert [victim.key for victim in preemption.victims] == ["training/r"]


def test_of_equal_pods_the_last_leaves_first() -> None:
    elastic = admitted(gang("e", nodes=2, sizes=(1, 2)), "n0", "n0")
    snapshot = cluster(node("n0", "rack-0"), running=[elastic], queues=(queue("research", 100),))
    (preemption,) = run(snapshot, gang("x", priority=5), policy=SURPLUS).preemptions
    assert [victim.kept for victim in preemption.victims] == [(0,)]


def given_back(elastic: Admitted, *neighbours: Admitted) -> tuple[int, ...]:
    """The positions that are kept when a gang of another queue asks for the quota, not the room."""
    queues = (
        queue("all"),
        queue("research", 4, parent="all"),
        queue("other", 8, parent="all"),
    )
    free = node("n3", "rack-1", gpus=8, labels={"a": "b"})
    nodes = [*(node(f"n{i}", "rack-0", gpus=8) for i in range(3)), free]
    snapshot = cluster(*nodes, running=[elastic, *neighbours], queues=queues)
    asks = gang("x", gpus=8, queue="other", required_level="rack", selector={"a": "b"})
    (preemption,) = run(snapshot, asks, policy=SURPLUS).preemptions
    (victim,) = preemption.victims
    return victim.kept


def test_of_pods_whose_room_nobody_needs_those_leave_first_whose_node_is_empty_then() -> None:
    """Half of the last node is another's: without the last pod it would not be empty."""
    elastic = admitted(gang("e", nodes=3, gpus=4, sizes=(1, 3)), "n0", "n0", "n1")
    stays = admitted(gang("r", gpus=4, queue="elsewhere"), "n1")
    assert given_back(elastic, stays) == (2,)


def test_a_node_with_the_fewest_pods_of_the_gang_is_emptied_first() -> None:
    elastic = admitted(gang("e", nodes=3, gpus=4, sizes=(1, 3)), "n0", "n1", "n1")
    assert given_back(elastic) in {(1,), (2,)}
