"""Roles: pods of other sizes are placed together with the main ones, or nobody is."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from drumline_scheduler import BlockReason, CycleInput, Node, Policy, Role, decide
from drumline_scheduler.placement import role_placement
from drumline_scheduler.placement.bin_selection import fewest_used
from drumline_scheduler.work import Work
from tests.property.invariants import violations
from tests.texts import missing
from tests.unit.scheduler.builders import admitted, cluster, gang, node, pod, racks, run

LAUNCHER = Role(name="launcher", pods=1, per_pod=pod(0, cpu=60))


def places(*nodes: Node, levels: tuple[str, ...] = ("rack",), **wanted: Any) -> tuple[str, ...]:
    snapshot = cluster(*nodes, levels=levels)
    gang_a = gang("a", **wanted)
    decisions = run(snapshot, gang_a)
    assert violations(snapshot=snapshot, pending=[gang_a], decisions=decisions) == ()
    return decisions.placed[0].assignment if decisions.placed else ()


def test_role_pods_come_first_and_stay_in_the_required_domain() -> None:
    assert places(*racks(), nodes=2, gpus=2, roles=(LAUNCHER,), required_level="rack") == (
        "n0",
        "n0",
        "n1",
    )


def test_a_role_goes_where_it_costs_main_pods_nothing() -> None:
    nodes = [*racks(count=1, nodes=3), node("n3", "rack-0", gpus=1)]
    store = Role(name="store", pods=1, per_pod=pod(1))
    assert places(*nodes, nodes=3, gpus=2, roles=(store,)) == ("n3", "n0", "n1", "n2")


def test_two_roles_that_fit_only_in_one_way_are_found() -> None:
    """Greedy choices fail: the big role needs the big node that the small one would fill."""
    nodes = [node("n0", "rack-0", gpus=4), node("n1", "rack-0", gpus=3), node("n2", "rack-0")]
    small = Role(name="small", pods=1, per_pod=pod(2))
    big = Role(name="big", pods=1, per_pod=pod(4))
    assert places(*nodes, nodes=1, gpus=3, roles=(small, big)) == ("n2", "n0", "n1")
    assert places(*nodes, nodes=2, gpus=3, roles=(small, big)) == ()


def test_roles_and_main_pods_use_few_racks_together() -> None:
    worker = Role(name="worker", pods=2, per_pod=pod(1))
    nodes = [*racks(count=1), node("n2", "rack-1"), node("n3", "rack-1", gpus=1)]
    assert places(*nodes, nodes=2, gpus=1, roles=(worker,)) == ("n0", "n0", "n1", "n1")


def test_a_gang_whose_roles_are_in_the_way_is_told_so() -> None:
    store = Role(name="store", pods=2, per_pod=pod(2))
    gang_a = gang("a", nodes=1, gpus=2, roles=(store,), required_level="rack")
    blocked = run(cluster(*racks()), gang_a).blocked[0]
    assert blocked.reason is BlockReason.EXCEEDS_CLUSTER
    assert (blocked.needed, blocked.available) == (6, 0)
    assert not missing(blocked.message, "6 GPUs", "2", "1 pod")


def test_quota_counts_the_roles_and_they_hold_what_they_ask_for() -> None:
    store = Role(name="store", pods=1, per_pod=pod(2))
    decisions = run(
        cluster(*racks(count=1)), gang("a", gpus=1, roles=(store,)), gang("b", gpus=2, at=1)
    )
    assert [placement.assignment for placement in decisions.placed] == [("n0", "n1")]
    assert decisions.blocked[0].message.endswith("training/a holds 3 (priority 0)")


def test_a_lost_role_is_replaced_beside_the_main_pods() -> None:
    gang_a = gang("a", nodes=2, gpus=2, roles=(LAUNCHER,), required_level="rack")
    broken = admitted(gang_a, "gone", "n2", "n3", lost=frozenset({0}))
    placed = run(cluster(*racks(), running=[broken])).placed[0]
    assert (placed.assignment, placed.replaced) == (("n2", "n2", "n3"), (0,))


def test_a_gang_with_roles_waits_for_the_first_node_of_a_pool() -> None:
    (blocked,) = run(
        cluster(), gang("a", nodes=2, roles=(LAUNCHER,), required_level="rack")
    ).blocked
    assert blocked.reason is BlockReason.POOL_WITHOUT_NODES


def test_even_shares_beside_many_role_pods_take_a_bounded_number_of_steps() -> None:
    """Shares are less even than possible before a cycle takes long. Without the bound: 18 M."""
    nodes = [node(f"n{i:03}", f"r{i // 4}", gpus=8, used=pod(i % 5)) for i in range(128)]
    roles = tuple(Role(name=f"r{k}", pods=11, per_pod=pod(1, cpu=k + 1)) for k in range(2))
    gang_a, work = gang("a", nodes=64, gpus=2, roles=roles, balanced_level="rack"), Work()
    given = CycleInput(snapshot=cluster(*nodes), pending=(gang_a,), policy=Policy(), now=0.0)
    decisions = decide(given, work=work)
    assert violations(snapshot=given.snapshot, pending=[gang_a], decisions=decisions) == ()
    assert decisions.placed
    assert work.steps < 10_000_000


def test_the_most_even_shares_are_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search between one pod and all of them took thirteen tables."""
    tables: list[int] = []

    def counted(**question: Any) -> int:
        tables.append(question["most"])
        return fewest_used(**question)

    monkeypatch.setattr(role_placement, "fewest_used", counted)
    nodes = [node(f"n{i:03}", f"r{i // 4:02}", gpus=8) for i in range(160)]
    roles = (Role(name="launcher", pods=1, per_pod=pod(0)),)
    (placed,) = run(
        cluster(*nodes), gang("a", nodes=500, gpus=2, roles=roles, balanced_level="rack")
    ).placed
    in_rack = Counter(int(name[1:]) // 4 for name in placed.assignment[1:])
    assert sorted(set(in_rack.values())) == [15, 16]
    assert tables == [32, 32]


def test_the_table_of_role_pods_and_nodes_compares_a_bounded_number_of_sums() -> None:
    """Two roles of 11 pods have almost the most pairs that are searched exactly."""
    two = tuple(Role(name=f"r{index}", pods=11, per_pod=pod(1 + index)) for index in range(2))
    nodes = [node(f"n{index:02}", "rack-0", gpus=4) for index in range(40)]
    work = Work()
    cycle = CycleInput(
        snapshot=cluster(*nodes),
        pending=(gang("a", nodes=20, gpus=4, roles=two),),
        policy=Policy(),
        now=0.0,
    )
    assert decide(cycle, work=work).placed
    assert work.steps < 2_500_000
