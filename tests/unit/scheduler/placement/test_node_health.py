"""Nodes that something speaks against: taken last among equals, quarantined ones not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import CycleInput, Node, Policy, Resources, decide
from drumline_scheduler.cycle_cache import CycleCache
from drumline_scheduler.decisions import BlockReason, RemedyKind
from drumline_scheduler.model import Toleration, TolerationOperator
from tests.property.invariants import violations
from tests.texts import missing
from tests.unit.scheduler.builders import admitted, cluster, gang, node, racks, run


def suspect(each: Node, suspicion: int = 1) -> Node:
    return replace(each, suspicion=suspicion)


def quarantined(each: Node) -> Node:
    return replace(each, quarantined=True, suspicion=2)


def used(each: Node, gpus: int) -> Node:
    return replace(each, used=Resources(gpus=gpus, pods=1))


def places(*nodes: Node, levels: tuple[str, ...] = ("rack",), **wanted: object) -> tuple[str, ...]:
    gang_a = gang("a", **wanted)  # pyright: ignore[reportArgumentType] - the builder's own names
    return run(cluster(*nodes, levels=levels), gang_a).placed[0].assignment


def test_among_equal_nodes_those_without_suspicion_are_taken_first() -> None:
    n0, n1, n2 = (node(name) for name in ("n0", "n1", "n2"))
    assert places(suspect(n0, 2), suspect(n1), n2, nodes=1, gpus=2) == ("n2",)
    assert places(suspect(n0, 2), suspect(n1), n2, nodes=2, gpus=2) == ("n1", "n2")


def test_a_tighter_fit_counts_more_than_a_suspicion() -> None:
    assert places(suspect(used(node("n0"), 1)), node("n1"), nodes=1, gpus=1) == ("n0",)


@pytest.mark.parametrize("level", [None, "rack"])
def test_among_equal_racks_the_one_without_suspicion_is_taken(level: str | None) -> None:
    n0, n1, n2, n3 = racks()
    assert places(suspect(n0), n1, n2, n3, nodes=2, gpus=2, required_level=level) == ("n2", "n3")
    assert places(n0, n1, suspect(n2), n3, nodes=2, gpus=2, required_level=level) == ("n0", "n1")


def test_nothing_is_placed_on_a_quarantined_node_and_the_message_counts_it() -> None:
    snapshot = cluster(quarantined(node("n0")), node("n1"))
    gang_a = gang("a", nodes=2, gpus=2)
    (blocked,) = run(snapshot, gang_a).blocked
    assert blocked.reason is BlockReason.NODES_UNAVAILABLE
    assert not missing(blocked.message, "1 of 2 nodes", "quarantined")
    assert blocked.remedy is not None
    assert blocked.remedy.kind is RemedyKind.RETURN_NODES


def test_a_check_gets_quarantined_nodes_by_a_toleration_of_their_own() -> None:
    tolerations = (Toleration(key="drumline.dev/quarantined", operator=TolerationOperator.EXISTS),)
    n0, n1 = quarantined(node("n0")), node("n1")
    assert places(n0, n1, nodes=2, gpus=2, tolerations=tolerations) == ("n0", "n1")
    everything = (Toleration(operator=TolerationOperator.EXISTS),)
    assert not run(cluster(n0, n1), gang("a", nodes=2, gpus=2, tolerations=everything)).placed


def test_a_gang_stays_on_a_node_that_is_quarantined_under_it() -> None:
    held = admitted(gang("a", nodes=2, gpus=2), "n0", "n1")
    snapshot = cluster(quarantined(node("n0")), node("n1"), running=(held,))
    decisions = run(snapshot)
    assert (decisions.preemptions, decisions.moves, decisions.resized) == ((), (), ())
    assert violations(snapshot=snapshot, pending=[], decisions=decisions) == ()


def test_a_kept_view_follows_a_change_of_health() -> None:
    cache = CycleCache()
    n0, n1 = node("n0"), node("n1")
    gang_a = gang("a", nodes=1, gpus=2)

    def placed(*nodes: Node) -> tuple[str, ...]:
        decisions = decide(
            CycleInput(snapshot=cluster(*nodes), pending=(gang_a,), policy=Policy(), now=0.0),
            cache=cache,
        )
        return decisions.placed[0].assignment if decisions.placed else ()

    assert placed(n0, n1) == ("n0",)
    assert placed(suspect(n0), n1) == ("n1",)
    assert placed(n0, quarantined(n1)) == ("n0",)
    assert placed(quarantined(n0), quarantined(n1)) == ()
    assert placed(n0, suspect(n1)) == ("n0",)
