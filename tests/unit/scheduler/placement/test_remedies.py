"""What a gang is told would help, helps: each remedy is carried out and the gang starts."""

from __future__ import annotations

from dataclasses import replace

from drumline_scheduler import BlockReason, Gang, Node, Remedy, RemedyKind, Role, Slice, Snapshot
from tests.unit.scheduler.builders import admitted, cluster, gang, node, pod, racks, run, without

LOST_1 = frozenset({1})


def remedy(snapshot: Snapshot, *waiting: Gang) -> Remedy | None:
    return run(snapshot, *waiting).blocked[0].remedy


def of(kind: RemedyKind, amount: int = 0, where: str = "") -> Remedy:
    return Remedy(kind=kind, amount=amount, where=where, pool="h100")


def with_more(snapshot: Snapshot, *nodes: Node) -> Snapshot:
    return replace(snapshot, nodes=snapshot.nodes + nodes)


def test_whoever_has_to_leave_is_waited_for() -> None:
    snapshot = cluster(*racks(count=1), running=[admitted(gang("r", gpus=2), "n0")])
    gang_a = gang("a", nodes=2, gpus=2)
    assert remedy(snapshot, gang_a) == of(RemedyKind.WAIT_FOR)
    assert run(without(snapshot, "r"), gang_a).placed


def test_a_gang_that_fits_a_wider_level_is_told_which() -> None:
    nodes = [node(f"n{i}", f"b{i // 4}", f"r{i // 2}") for i in range(8)]
    snapshot = cluster(*nodes, levels=("block", "rack"))
    gang_a = gang("a", nodes=3, gpus=2, required_level="rack")
    assert remedy(snapshot, gang_a) == of(RemedyKind.RELAX_TOPOLOGY, where="block")
    assert run(snapshot, replace(gang_a, required_level="block")).placed
    wide = gang("a", nodes=5, gpus=2, required_level="block")
    assert remedy(snapshot, wide) == of(RemedyKind.RELAX_TOPOLOGY, where="")
    assert run(snapshot, replace(wide, required_level=None)).placed


def test_a_gang_too_large_for_the_pool_hears_how_many_pods_fit_now() -> None:
    snapshot = cluster(*racks())
    gang_a = gang("a", nodes=7, gpus=2)
    assert remedy(snapshot, gang_a) == of(RemedyKind.ASK_FOR_LESS, 4)
    assert run(snapshot, replace(gang_a, nodes=4)).placed
    assert run(snapshot, replace(gang_a, nodes=5)).blocked


def test_fewer_pods_are_whole_slices() -> None:
    snapshot = cluster(*racks(nodes=3))
    gang_a = gang("a", nodes=8, gpus=2, slices=(Slice(level="rack", pods=2),))
    assert remedy(snapshot, gang_a) == of(RemedyKind.ASK_FOR_LESS, 4)
    assert run(snapshot, replace(gang_a, nodes=4)).placed


def test_nodes_that_are_out_of_service_are_asked_back_as_few_as_needed() -> None:
    nodes = [replace(gang_a, unschedulable=gang_a.name in {"n1", "n3"}) for gang_a in racks()]
    snapshot = cluster(*nodes)
    gang_a = gang("a", nodes=3, gpus=2)
    assert remedy(snapshot, gang_a) == of(RemedyKind.RETURN_NODES, 1)
    returned = [replace(gang_a, unschedulable=gang_a.name == "n1") for gang_a in nodes]
    assert run(replace(snapshot, nodes=tuple(returned)), gang_a).placed
    pair = replace(gang_a, nodes=2, required_level="rack")
    assert remedy(snapshot, pair) == of(RemedyKind.RETURN_NODES, 1, where="rack-0")


def test_more_nodes_are_asked_for_where_there_is_most_room() -> None:
    nodes = [replace(rack, labels={"kind": "fast"}) for rack in racks()]
    busy = admitted(gang("r", gpus=2), "n0")
    snapshot = cluster(*nodes, running=[busy])
    asked = gang(
        "a",
        nodes=4,
        gpus=2,
        required_level="rack",
        selector={"kind": "fast"},
        slices=(Slice(level="rack", pods=4),),
    )
    assert remedy(snapshot, replace(asked, required_level=None)) == of(
        RemedyKind.ADD_NODES, 2, where="rack-1"
    )
    assert remedy(snapshot, asked) == of(RemedyKind.ADD_NODES, 2, where="rack-1")
    fresh = [node(f"new{i}", "rack-1", labels={"kind": "fast"}) for i in range(2)]
    assert run(with_more(snapshot, *fresh), asked).placed
    assert run(with_more(snapshot, fresh[0]), asked).blocked


def test_more_nodes_hold_the_roles_too() -> None:
    launcher = Role(name="launcher", pods=1, per_pod=pod(2))
    slices = (Slice(level="rack", pods=3),)
    gang_a = gang("a", nodes=3, gpus=2, roles=(launcher,), slices=slices)
    snapshot = cluster(*racks(count=1))
    assert remedy(snapshot, gang_a) == of(RemedyKind.ADD_NODES, 2, where="rack-0")
    fresh = [node(f"new{i}", "rack-0") for i in range(2)]
    assert run(with_more(snapshot, *fresh), gang_a).placed


def test_a_pod_that_no_node_can_hold_hears_what_the_largest_has() -> None:
    snapshot = cluster(*racks())
    gang_a = gang("a", gpus=3)
    assert remedy(snapshot, gang_a) == of(RemedyKind.ASK_FOR_SMALLER_PODS, 2, where="gpus")
    assert run(snapshot, replace(gang_a, per_pod=pod(2))).placed


def test_a_broken_gang_is_not_told_to_ask_for_less() -> None:
    broken = admitted(
        gang("a", nodes=3, gpus=2, required_level="rack"), "n0", "x", "n1", lost=LOST_1
    )
    snapshot = cluster(*racks(count=1), running=[broken])
    assert remedy(snapshot) == of(RemedyKind.ADD_NODES, 1, where="rack-0")
    placed = run(with_more(snapshot, node("new", "rack-0"))).placed
    assert [placement.assignment for placement in placed] == [("n0", "new", "n1")]


def test_an_unknown_level_is_answered_with_the_nearest_name() -> None:
    snapshot = cluster(*racks(), levels=("rack",))
    blocked = run(snapshot, gang("a", required_level="racks")).blocked[0]
    assert blocked.reason is BlockReason.TOPOLOGY_LEVEL_UNKNOWN
    assert blocked.remedy == Remedy(kind=RemedyKind.CORRECT_NAME, where="rack")
