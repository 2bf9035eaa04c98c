"""Which free nodes are kept for gangs that wait for others to leave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from drumline_scheduler import Admitted, Decisions, Gang, Node, Placed, Reservation
from drumline_scheduler.autoscaling.kept_nodes import first_gangs, kept_nodes
from tests.unit.scheduler.builders import admitted, cluster, gang, node, pod

TIMEOUTS = {"h100": 600.0}
NOW = 1000.0
G = gang("g", nodes=2, gpus=8, nominated=("n1", "n2"), nominated_pool="h100")
EMPTY = [node("n1", gpus=8), node("n2", gpus=8), node("n3", gpus=8)]
VICTIM = admitted(gang("victim", gpus=8), "n1", leaving=True)


def kept(
    *pending: Gang,
    nodes: list[Node] = EMPTY,
    running: tuple[Admitted, ...] = (VICTIM,),
    **changes: Any,
) -> list[tuple[str, str, int]]:
    """Uid of the gang, node and GPUs."""
    decisions = changes.pop("decisions", Decisions())
    timeouts = changes.pop("timeouts", TIMEOUTS)
    nodes_kept = kept_nodes(
        snapshot=cluster(*nodes, running=running),
        pending=pending,
        decisions=decisions,
        timeouts=timeouts,
        now=NOW,
    )
    return [(each.gang.uid, each.node.name, each.share.gpus) for each in nodes_kept]


def test_a_node_that_is_free_already_is_kept_until_the_victim_on_the_other_has_left() -> None:
    assert kept(G) == [("uid-g", "n2", 8)]
    assert kept(G, running=()) == [("uid-g", "n1", 8), ("uid-g", "n2", 8)]


def test_of_a_gang_that_starts_nothing_is_kept_nor_where_no_autoscaler_is_asked() -> None:
    placed = Placed(key=G.key, uid=G.uid, pool="h100", assignment=G.nominated)
    assert kept(G, running=(), decisions=Decisions(placed=(placed,))) == []
    assert kept(G, timeouts={"a100": 600.0}) == []
    assert kept(replace(G, nominated=())) == []


def test_a_share_keeps_all_free_gpus_of_its_node_and_a_node_without_room_is_not_kept() -> None:
    half = gang("half", gpus=4, nominated=("n1",), nominated_pool="h100")
    shared = admitted(gang("other", gpus=2), "n1")
    promised = admitted(gang("coming", gpus=1), "n1", reserved=frozenset({0}))
    assert kept(half, running=(shared, promised)) == [("uid-half", "n1", 5)]
    full = admitted(gang("other", gpus=5), "n1")
    assert kept(half, running=(full,)) == []
    both = replace(half, nodes=2, nominated=("n1", "n1"))
    assert kept(both, running=()) == [("uid-half", "n1", 8)]


def test_a_node_may_be_kept_for_several() -> None:
    gangs = [
        gang(name, gpus=gpus, nominated=("n1",), nominated_pool="h100")
        for name, gpus in (("a", 4), ("b", 2), ("big", 16))
    ]
    (shared,) = kept_nodes(
        snapshot=cluster(*EMPTY),
        pending=gangs,
        decisions=Decisions(),
        timeouts=TIMEOUTS,
        now=NOW,
    )
    assert (shared.gang.uid, shared.other_uids) == ("uid-a", ("uid-b",))
    assert first_gangs([shared], of_any=["uid-b", "uid-c"]) == {"uid-a"}
    assert first_gangs([shared], of_any=["uid-big"]) == frozenset()


def test_what_leaves_for_other_places_and_what_is_repaired_keep_theirs_too() -> None:
    moves = admitted(gang("m", gpus=8), "n1", leaving=True, nominated={0: "n3"})
    assert kept(running=(moves,)) == [("uid-m", "n3", 8)]
    stays = Decisions(stay=("uid-m",))
    assert kept(running=(moves,), decisions=stays) == []
    broken = admitted(
        gang("b", nodes=2, gpus=8), "n1", "n9", lost=frozenset({1}), nominated={1: "n2"}
    )
    assert kept(running=(broken,)) == [("uid-b", "n2", 8)]


def test_a_reservation_keeps_nodes_once_it_begins_before_others_could_be_there() -> None:
    waits = gang("w", nodes=2, gpus=8)

    def reserved(start_at: float) -> Decisions:
        reservation = Reservation(
            key=waits.key, uid=waits.uid, pool="h100", assignment=("n1", "n2"), start_at=start_at
        )
        return Decisions(reservations=(reservation,))

    assert kept(waits, decisions=reserved(NOW + 600)) == [("uid-w", "n2", 8)]
    assert kept(waits, decisions=reserved(NOW + 601)) == []


def test_a_node_that_takes_no_pods_is_not_kept() -> None:
    first, second, *_ = EMPTY
    for change in (
        {"ready": False},
        {"starting": True},
        {"unschedulable": True},
        {"quarantined": True},
        {"closed": "maintenance"},
    ):
        assert kept(G, nodes=[first, replace(second, **change)]) == [], change
    ends = replace(second, used=pod(8), terminating=pod(8))
    assert kept(G, nodes=[first, ends]) == []
