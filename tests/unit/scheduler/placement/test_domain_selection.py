"""Where a gang goes: near together, tight, packed, in the order of its indices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import Node, Resources
from tests.property.invariants import violations
from tests.unit.scheduler.builders import admitted, cluster, gang, node, pod, racks, room, run


def places(*nodes: Node, levels: tuple[str, ...] = ("rack",), **wanted: object) -> tuple[str, ...]:
    snapshot = cluster(*nodes, levels=levels)
    gang_a = gang("a", **wanted)  # pyright: ignore[reportArgumentType] - the builder's own names
    decisions = run(snapshot, gang_a)
    assert violations(snapshot=snapshot, pending=[gang_a], decisions=decisions) == ()
    return decisions.placed[0].assignment if decisions.placed else ()


def used(each_node: Node, gpus: int) -> Node:
    return replace(each_node, used=Resources(gpus=gpus, pods=1))


def test_a_required_rack_is_kept_while_a_looser_fit_exists() -> None:
    n0, n1, n2, n3 = racks()
    assert places(used(n0, 2), n1, n2, n3, nodes=2, gpus=2, required_level="rack") == ("n2", "n3")
    spread = (used(n0, 2), n1, used(n2, 2), n3)
    assert places(*spread, nodes=2, gpus=2, required_level="rack") == ()
    assert places(*spread, nodes=2, gpus=2) == ("n1", "n3")


def test_best_fit_takes_the_rack_that_is_left_with_the_least() -> None:
    n0, n1, n2, n3 = racks(gpus=4)
    assert places(n0, n1, n2, used(n3, 2), nodes=2, gpus=2, preferred_level="rack") == ("n2",) * 2
    assert places(n0, n1, n2, used(n3, 2), nodes=1, gpus=2) == ("n3",)
    assert places(n0, n1, used(n2, 4), used(n3, 2), nodes=2, gpus=2) == ("n0",) * 2


def test_a_preferred_level_gives_way_upwards_but_never_beyond_the_required_one() -> None:
    levels = ("block", "rack")
    nodes = [
        node("n0", "b0", "r0"),
        node("n1", "b1", "r0"),
        node("n2", "b1", "r1"),
        node("n3", "b2", "r0"),
        node("n4", "b2", "r0"),
    ]
    wish = {"gpus": 2, "preferred_level": "rack", "required_level": "block", "levels": levels}
    assert places(*nodes, nodes=2, **wish) == ("n3", "n4")
    assert places(*nodes[:3], nodes=2, **wish) == ("n1", "n2")
    assert places(*nodes[:3], nodes=3, **wish) == ()
    assert places(*nodes[:3], nodes=3, gpus=2, preferred_level="rack", levels=levels) == (
        "n0",
        "n1",
        "n2",
    )


def test_s_prefix_equal_racks_of_two_blocks_are_two_racks() -> None:
    nodes = (node("n0", "b0", "rack-1"), node("n1", "b1", "rack-1"))
    wish = {"nodes": 2, "gpus": 2, "levels": ("block", "rack")}
    assert places(*nodes, required_level="rack", **wish) == ()
    assert places(*nodes, **wish) == ("n0", "n1")


def test_without_one_domain_as_few_as_possible_are_used_and_the_last_is_tight() -> None:
    nodes = [*racks(count=1, nodes=3)]
    nodes += [node(f"m{i}", "rack-1") for i in range(2)]
    nodes += [node("o0", "rack-2")]
    assert places(*nodes, nodes=4, gpus=2) == ("n0", "n1", "n2", "o0")


def test_nodes_in_use_are_filled_before_empty_ones() -> None:
    n0, n1, n2, _ = racks(gpus=4, nodes=4, count=1)
    assert places(n0, used(n1, 2), used(n2, 3), nodes=2, gpus=1) == ("n1", "n1")
    assert places(n0, used(n1, 2), used(n2, 3), nodes=4, gpus=1) == ("n0",) * 4
    assert places(n0, used(n1, 3), used(n2, 3), nodes=3, gpus=1) == ("n0",) * 3
    assert places(used(n0, 2), used(n1, 3), used(n2, 3), nodes=3, gpus=1) == ("n0", "n0", "n1")


def test_one_node_holds_several_pods_of_a_gang() -> None:
    assert places(*racks(count=1), nodes=4, gpus=1) == ("n0", "n0", "n1", "n1")
    assert places(*racks(count=1), nodes=2, gpus=1, required_level="rack") == ("n0", "n0")
    hosts = [replace(rack, domains=(*rack.domains, rack.name)) for rack in racks(count=1)]
    assert places(*hosts, levels=("rack", "host"), nodes=2, required_level="host") == ("n0", "n0")
    assert places(*hosts, levels=("rack", "host"), nodes=3, required_level="host") == ()


def test_neighbouring_indices_share_racks_and_follow_names() -> None:
    scattered = [node(f"n{i}", f"rack-{i % 2}") for i in (3, 1, 0, 2)]
    assert places(*scattered, nodes=4, gpus=2) == ("n0", "n2", "n1", "n3")


def test_nodes_without_a_label_serve_only_those_who_ask_for_no_level() -> None:
    nodes = (node("n0"), node("n1", ""), node("n2", "rack-0"))
    assert places(*nodes, nodes=2, gpus=2, required_level="rack") == ()
    assert places(*nodes, nodes=3, gpus=2) == ("n0", "n1", "n2")
    placed = run(cluster(*nodes[:2]), gang("a", nodes=2, gpus=2)).placed[0]
    assert (placed.level, placed.domain) == (None, ())


def test_an_inner_rack_of_an_unknown_block_does_not_satisfy_a_required_block() -> None:
    wish = {"required_level": "block", "preferred_level": "rack", "levels": ("block", "rack")}
    assert places(node("n0", "", "rack-0"), **wish) == ()


def test_foreign_pods_count_in_every_resource() -> None:
    n0, n1 = racks(count=1)
    full = replace(n0, used=Resources(pods=110))
    assert places(full, n1, nodes=1, gpus=2) == ("n1",)
    busy = replace(n0, used=Resources(cpu_millis=63_500))
    assert places(busy, n1, per_pod=pod(1, cpu=1)) == ("n1",)
    assert places(busy, per_pod=pod(1)) == ("n0",)


def test_extended_resources_are_counted_too() -> None:
    rdma = (("rdma/hca", 1),)
    n0, n1 = racks(count=1)
    with_hca = replace(n1, allocatable=room(2, extended=rdma))
    assert places(n0, with_hca, per_pod=pod(1, extended=rdma)) == ("n1",)
    assert places(n0, with_hca, nodes=2, per_pod=pod(1, extended=rdma)) == ()


@pytest.mark.parametrize("pool", ["h100", None])
def test_nodes_of_another_pool_are_out_of_reach(pool: str | None) -> None:
    assert places(node("x", "rack-0", pool="a100"), pool=pool) == ()


def test_three_pods_go_under_the_one_spine_that_still_holds_three() -> None:
    """Leaf switches of 2 nodes, spines of 4; half of the nodes are busy."""
    nodes = [node(f"n{i}", f"s{(i - 1) // 4}", f"l{(i - 1) // 2}") for i in range(1, 13)]
    running = [admitted(gang(f"r{i}", gpus=2), f"n{i}") for i in (1, 3, 6, 11, 12)]
    snapshot = cluster(*nodes, levels=("spine", "leaf"), running=running)
    placed = run(snapshot, gang("a", nodes=3, gpus=2)).placed[0]
    assert placed.assignment == ("n5", "n7", "n8")
    assert (placed.level, placed.domain) == ("spine", ("s1",))


def test_a_burst_that_can_run_in_nine_full_waves_does() -> None:
    """53 whole-node jobs on 32 nodes: what is placed in a cycle ends before the next one."""
    rows = [(1, 32), (2, 16), (3, 10), (1, 2), (4, 8), (5, 6), (2, 1), (6, 5), (1, 2), (7, 4)]
    rows += [(1, 2), (2, 1), (8, 4), (9, 3), (1, 5)]
    sizes = [size for count, size in rows for _ in range(count)]
    waiting = [gang(f"{i:02}", nodes=size, gpus=8, at=i) for i, size in enumerate(sizes)]
    snapshot = cluster(*racks(count=4, nodes=8, gpus=8))
    for _ in range(9):
        started = {each_gang.uid: each_gang for each_gang in run(snapshot, *waiting).placed}
        assert sum(len(placement.assignment) for placement in started.values()) == 32
        waiting = [each_gang for each_gang in waiting if each_gang.uid not in started]
    assert waiting == []
