"""Lost places of admitted gangs are filled first, near the others, and nothing else moves."""

from __future__ import annotations

from dataclasses import replace

from drumline_scheduler import BlockReason, Node, Role
from drumline_scheduler.placement.pool_view import build_views
from drumline_scheduler.placement.resource_axis import axis_of
from drumline_scheduler.preemption.repair import most_free_gpus
from tests.texts import missing
from tests.unit.scheduler.builders import admitted, cluster, gang, node, pod, racks, room, run

LOST_1 = frozenset({1})


def test_a_lost_place_is_filled_in_the_same_rack_and_the_others_stay() -> None:
    broken = admitted(gang("a", nodes=2, gpus=2), "n3", "gone", lost=LOST_1)
    placed = run(cluster(*racks(nodes=3), running=[broken])).placed[0]
    assert (placed.assignment, placed.replaced) == (("n3", "n4"), (1,))
    assert (placed.level, placed.domain) == ("rack", ("rack-1",))


def test_without_room_in_the_rack_a_repair_goes_wider_unless_the_rack_is_required() -> None:
    broken = admitted(gang("a", nodes=3, gpus=2), "n0", "gone", "n1", lost=LOST_1)
    assert run(cluster(*racks(), running=[broken])).placed[0].assignment == ("n0", "n2", "n1")
    strict = replace(broken, gang=replace(broken.gang, required_level="rack"))
    blocked = run(cluster(*racks(nodes=2), running=[strict])).blocked[0]
    assert (blocked.reason, blocked.blockers) == (BlockReason.EXCEEDS_CLUSTER, ())
    assert not missing(blocked.message, "2 GPUs", "rack-0")


def test_a_repair_waits_for_who_sits_in_its_rack() -> None:
    broken = admitted(gang("a", nodes=2, gpus=2, required_level="rack"), "n0", "gone", lost=LOST_1)
    other = admitted(gang("b", gpus=1), "n1")
    blocked = run(cluster(*racks(), running=[broken, other])).blocked[0]
    assert blocked.reason is BlockReason.TOPOLOGY_DOES_NOT_FIT
    assert blocked.blockers == ("training/b",)
    assert not missing(blocked.message, "2 GPUs", "rack-0", "1 of 4", "training/b")


def test_s10_what_cannot_be_repaired_does_not_keep_another_from_its_repair() -> None:
    pinned = {"nodes": 2, "gpus": 2, "required_level": "rack"}
    stuck = admitted(gang("a", **pinned), "n0", "gone-0", lost=LOST_1)
    lucky = admitted(gang("b", **pinned), "n2", "gone-1", lost=LOST_1)
    nodes = [rack for rack in racks() if rack.name != "n1"]
    decisions = run(cluster(*nodes, running=[stuck, lucky]))
    assert [(placed.key, placed.assignment) for placed in decisions.placed] == [
        ("training/b", ("n2", "n3"))
    ]
    assert [blocked.key for blocked in decisions.blocked] == ["training/a"]


def test_s11_one_spare_node_goes_to_one_of_two_broken_gangs() -> None:
    first = admitted(gang("a", nodes=2, gpus=2), "n0", "gone-0", lost=LOST_1)
    second = admitted(gang("b", nodes=2, gpus=2), "n1", "gone-1", lost=LOST_1)
    decisions = run(cluster(*racks()[:3], running=[second, first]))
    assert [placed.assignment for placed in decisions.placed] == [("n0", "n2")]
    assert [blocked.key for blocked in decisions.blocked] == ["training/b"]


def test_s12_the_returned_node_goes_to_the_broken_gang_and_not_to_a_fresh_one() -> None:
    broken = admitted(gang("old", nodes=2, gpus=2, at=9), "n0", "n1", lost=LOST_1)
    fresh = gang("fresh", gpus=2, priority=9)
    decisions = run(cluster(*racks(count=1), running=[broken]), fresh)
    assert decisions.placed[0].assignment == ("n0", "n1")
    assert decisions.blocked[0].key == "training/fresh"


def test_all_lost_places_are_filled_or_none() -> None:
    broken = admitted(gang("a", nodes=3, gpus=2), "n0", "x", "y", lost=frozenset({1, 2}))
    decisions = run(cluster(*racks(count=1), running=[broken]))
    assert decisions.placed == ()
    decisions = run(cluster(*racks(count=1, nodes=3), running=[broken]))
    assert decisions.placed[0].assignment == ("n0", "n1", "n2")


def test_several_lost_places_are_filled_in_one_decision_nearest_first() -> None:
    """A gang over two racks loses one pod in each; a third rack could hold both."""
    nodes = racks(count=3, nodes=3)
    gone = ("n2", "n5")
    broken = admitted(
        gang("a", nodes=4, gpus=2), "n0", "gone-0", "n3", "gone-1", lost=frozenset({1, 3})
    )
    rest = [admitted(gang(f"r-{name}", gpus=2), name) for name in gone]
    placed = run(cluster(*nodes, running=[broken, *rest])).placed[0]
    assert placed.assignment == ("n0", "n1", "n3", "n4")


def test_what_does_not_fit_beside_the_others_goes_to_as_few_domains_as_can_hold_it() -> None:
    broken = admitted(gang("a", nodes=4, gpus=2), "n0", "x", "y", "z", lost=frozenset({1, 2, 3}))
    nodes = [*racks(count=2, nodes=2), node("n4", "rack-2"), node("n5", "rack-3")]
    placed = run(cluster(*nodes, running=[broken])).placed[0]
    assert placed.assignment == ("n0", "n1", "n2", "n3")


def test_a_repair_keeps_off_nodes_that_the_job_excludes_or_that_are_about_to_go() -> None:
    broken = admitted(
        gang("a", nodes=2, gpus=2, excluded_nodes=frozenset({"n1"})), "n0", "x", lost=LOST_1
    )
    nodes = racks(count=1, nodes=4)
    nodes[2] = replace(nodes[2], closed="spot reclaim")
    assert run(cluster(*nodes, running=[broken])).placed[0].assignment == ("n0", "n3")
    blocked = run(cluster(*nodes[:3], running=[broken])).blocked[0]
    assert blocked.reason is BlockReason.NODES_UNAVAILABLE
    assert not missing(blocked.message, "1", "spot", "GPU")


def test_a_gang_that_leaves_is_not_repaired_any_more() -> None:
    broken = admitted(gang("a", nodes=2, gpus=2), "n0", "x", lost=LOST_1, leaving=True)
    decisions = run(cluster(*racks(), running=[broken]))
    assert (decisions.placed, decisions.blocked) == ((), ())


def test_a_repair_needs_no_quota_again() -> None:
    broken = admitted(gang("a", nodes=2, queue="gone"), "n0", "x", lost=LOST_1)
    assert run(cluster(*racks(), running=[broken])).placed[0].assignment == ("n0", "n0")


def test_a_gang_that_lost_everything_is_placed_anew_in_one_required_domain() -> None:
    everything = frozenset({0, 1})
    broken = admitted(gang("a", nodes=2, gpus=2, required_level="rack"), "x", "y", lost=everything)
    other = admitted(gang("b"), "n0")
    placed = run(cluster(*racks(), running=[broken, other])).placed[0]
    assert (placed.assignment, placed.replaced) == (("n2", "n3"), (0, 1))


def test_a_repair_that_backs_off_waits() -> None:
    broken = admitted(gang("a", nodes=2, retry_at=5.0), "n0", "x", lost=LOST_1)
    decisions = run(cluster(*racks(), running=[broken]))
    assert (decisions.blocked[0].reason, decisions.retry_at) == (BlockReason.BACKING_OFF, 5.0)


def test_nobody_guesses_a_rack_when_the_labels_of_the_others_are_gone() -> None:
    broken = admitted(gang("a", nodes=2, gpus=2, required_level="rack"), "n0", "x", lost=LOST_1)
    nodes: list[Node] = [node("n0"), *racks()[1:]]
    for snapshot in (
        cluster(*nodes, running=[broken]),
        cluster(*racks()[1:], running=[broken]),
    ):
        blocked = run(snapshot).blocked[0]
        assert blocked.reason is BlockReason.NODES_UNAVAILABLE
        assert blocked.message == (
            "must stay in one rack, but no node of its other pods has that label any more"
        )


def test_a_repair_whose_pool_is_gone_says_so() -> None:
    broken = admitted(gang("a", nodes=2), "n0", "x", lost=LOST_1, pool="a100")
    blocked = run(cluster(*racks(), running=[broken])).blocked[0]
    assert blocked.reason is BlockReason.POOL_NOT_FOUND


def test_two_broken_gangs_on_the_same_nodes_wait_for_each_other_and_not_for_themselves() -> None:
    item, two = (
        admitted(gang(name, nodes=2, required_level="rack"), "n0", "x", lost=LOST_1)
        for name in ("a", "b")
    )
    third = admitted(gang("r", gpus=2, priority=9), "n1")
    blocked = run(cluster(*racks(), running=[item, two, third])).blocked
    assert [(x.key, x.blockers) for x in blocked] == [
        ("training/a", ("training/b",)),
        ("training/b", ("training/a",)),
    ]


def test_a_repaired_gang_holds_its_old_places_and_its_new_ones() -> None:
    broken = admitted(gang("a", nodes=2, gpus=2), "n0", "x", lost=LOST_1)
    blocked = run(cluster(*racks(count=1), running=[broken]), gang("b", nodes=2, gpus=2)).blocked
    assert not missing(blocked[0].message, "0 of 4", "training/a")


def closed(nodes: list[Node], *names: str) -> list[Node]:
    """The nodes, of which some are about to go."""
    return [replace(each, unschedulable=True) if each.name in names else each for each in nodes]


def test_pods_on_a_node_that_is_about_to_go_move_and_the_others_stay() -> None:
    whole = admitted(gang("a", nodes=2, gpus=2), "n0", "n1", displaced=LOST_1)
    nodes = closed(racks(count=1, nodes=3), "n1")
    placed = run(cluster(*nodes, running=[whole])).placed[0]
    assert (placed.assignment, placed.replaced) == (("n0", "n2"), (1,))


def test_without_another_node_for_all_of_them_they_stay() -> None:
    whole = admitted(gang("a", nodes=3, gpus=2), "n0", "n1", "n2", displaced=frozenset({1, 2}))
    nodes = closed(racks(count=1, nodes=4), "n1", "n2")
    decisions = run(cluster(*nodes, running=[whole]))
    assert (decisions.placed, decisions.blocked, decisions.preemptions) == ((), (), ())


def test_they_come_after_repairs_and_before_pending_gangs() -> None:
    broken = admitted(gang("broken", gpus=2), "gone", lost=frozenset({0}))
    whole = admitted(gang("whole", gpus=2), "n0", displaced=frozenset({0}))
    urgent = gang("urgent", gpus=2, priority=9)
    nodes = closed(racks(count=1, nodes=3), "n0")
    decisions = run(cluster(*nodes, running=[whole, broken]), urgent)
    assert [placed.key for placed in decisions.placed] == ["training/broken", "training/whole"]
    assert [blocked.key for blocked in decisions.blocked] == ["training/urgent"]


def test_they_keep_to_the_domain_that_the_gang_requires() -> None:
    whole = admitted(
        gang("a", nodes=2, gpus=2, required_level="rack"), "n0", "n1", displaced=LOST_1
    )
    assert run(cluster(*closed(racks(), "n1"), running=[whole])).placed == ()


def test_a_node_that_is_open_again_is_not_left_for_itself() -> None:
    whole = admitted(gang("a", nodes=2, gpus=1), "n0", "n1", displaced=LOST_1)
    other = admitted(gang("b", gpus=1), "n0")
    assert run(cluster(*racks(count=1), running=[whole, other])).placed == ()


def test_what_is_kept_for_a_gang_that_finds_another_node_is_the_next_gangs() -> None:
    """The broken gang, which must have the kept node, is before the pending one of that kind."""
    kept = {1: "n3"}
    whole = admitted(gang("a", nodes=2, gpus=2), "n0", "n1", displaced=LOST_1, nominated=kept)
    fixed = [gang(name, gpus=2, selector={"disk": "fast"}) for name in ("broken", "waits")]
    broken = admitted(fixed[0], "gone", lost=frozenset({0}))
    nodes = closed(racks(count=1, nodes=4), "n1")
    nodes[3] = replace(nodes[3], labels={"disk": "fast"})
    decisions = run(cluster(*nodes, running=[whole, broken]), fixed[1])
    assert {placed.key: placed.assignment for placed in decisions.placed} == {
        "training/a": ("n0", "n2"),
        "training/broken": ("n3",),
    }


def test_what_is_kept_for_a_gang_that_finds_no_other_nodes_stays_kept() -> None:
    whole = admitted(
        gang("a", nodes=3, gpus=2),
        "n0",
        "n1",
        "n2",
        displaced=frozenset({1, 2}),
        nominated={1: "n3", 2: "n4"},
    )
    nodes = closed(racks(count=1, nodes=5), "n1", "n2")
    nodes[4] = replace(nodes[4], used=pod(2), terminating=pod(2))
    assert run(cluster(*nodes, running=[whole]), gang("waits", gpus=2)).placed == ()


def test_what_is_kept_for_the_pod_of_a_role_is_as_large_as_that_pod() -> None:
    launcher = Role(name="launcher", pods=1, per_pod=pod(0, cpu=4))
    kept = {0: "n2"}
    whole = admitted(
        gang("a", gpus=2, roles=(launcher,)), "n1", "n0", displaced=frozenset({0}), nominated=kept
    )
    nodes = [
        node("n0", gpus=2, allocatable=room(2, cpu=0)),
        node("n1", gpus=0, unschedulable=True),
        node("n2", allocatable=room(1, cpu=4), used=pod(0, cpu=1), terminating=pod(0, cpu=1)),
    ]
    waits = gang("waits", per_pod=pod(1, cpu=1))
    assert run(cluster(*nodes, running=[whole]), waits).placed == ()


def test_a_gang_moves_to_the_node_that_another_one_leaves_to_it() -> None:
    large = admitted(gang("large", gpus=4, at=-1.0), "n0", displaced=frozenset({0}))
    small = admitted(gang("small", gpus=2), "n1", displaced=frozenset({0}), nominated={0: "n3"})
    nodes = [node(f"n{number}", gpus=gpus) for number, gpus in enumerate([4, 2, 2, 4])]
    decisions = run(cluster(*closed(nodes, "n0", "n1"), running=[large, small]))
    assert {placed.key: placed.assignment for placed in decisions.placed} == {
        "training/small": ("n2",),
        "training/large": ("n3",),
    }


def test_what_a_gang_that_starts_elsewhere_leaves_is_the_broken_gangs_first() -> None:
    fast = gang("broken", gpus=2, selector={"disk": "fast"})
    broken = admitted(fast, "gone", lost=frozenset({0}))
    whole = admitted(gang("whole", gpus=2), "n1", displaced=frozenset({0}))
    starts = gang("starts", gpus=4, nominated=("n3",), nominated_pool="h100")
    nodes = closed([node(f"n{number}", gpus=4) for number in range(4)], "n0", "n1")
    nodes[3] = replace(nodes[3], labels={"disk": "fast"}, used=pod(2), terminating=pod(2))
    decisions = run(cluster(*nodes, running=[broken, whole]), starts)
    assert {placed.key: placed.assignment for placed in decisions.placed} == {
        "training/starts": ("n2",),
        "training/broken": ("n3",),
    }


def test_an_elastic_gang_on_a_node_that_is_about_to_go_does_not_grow() -> None:
    elastic = gang("a", nodes=3, gpus=2, sizes=(2, 3))
    whole = admitted(elastic, "n0", "n1", displaced=LOST_1)
    nodes = closed(racks(count=1, nodes=4), "n1")
    decisions = run(cluster(*nodes, running=[whole]))
    assert [placed.replaced for placed in decisions.placed] == [(1,)]
    assert decisions.resized == ()


def test_the_most_free_gpus_are_those_of_a_node_that_takes_new_pods() -> None:
    nodes = [
        node("n0", "rack-0", gpus=8, unschedulable=True),
        node("n1", "rack-0", gpus=6, closed="maintenance"),
        node("n2", "rack-0", gpus=4, used=pod(1)),
        node("n3", "rack-0", gpus=2),
    ]
    snapshot = cluster(*nodes)
    (view,) = build_views(snapshot=snapshot, axis=axis_of(waiting=(gang("a"),))).values()
    assert most_free_gpus(view) == 3
    (none,) = build_views(snapshot=cluster(nodes[0]), axis=axis_of(waiting=(gang("a"),))).values()
    assert most_free_gpus(none) == 0
