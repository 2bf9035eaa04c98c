"""New nodes are the same objects in each cycle, as long as their offer stays the same."""

from __future__ import annotations

from dataclasses import replace

from drumline_scheduler import NodeOffer
from drumline_scheduler.offered_nodes import OfferedNodes
from drumline_scheduler.resources import NOTHING
from tests.unit.scheduler.builders import node, pod

OFFER = NodeOffer(node=node("new", "r1", gpus=8), zone="a", pool_limit=100)


def test_the_nodes_of_the_last_cycle_are_given_out_again() -> None:
    nodes = OfferedNodes()
    first = [*nodes.take(OFFER, 2), *nodes.take(OFFER, 1)]
    assert [each.node.name for each in first] == [f"~h100/a/00000{n}" for n in range(3)]
    nodes.begin()
    again = nodes.take(replace(OFFER, new_limit=7), 4)
    assert all(new.node is known.node for known, new in zip(first, again, strict=False))
    assert first[0].absent is again[0].absent


def test_nodes_of_another_kind_are_made_anew() -> None:
    nodes = OfferedNodes()
    nodes.take(OFFER, 2)
    nodes.begin()
    larger = replace(OFFER, node=node("new", "r1", gpus=16))
    assert [each.node.allocatable.gpus for each in nodes.take(larger, 3)] == [16, 16, 16]


def test_nodes_that_a_cycle_did_not_use_are_forgotten() -> None:
    nodes = OfferedNodes()
    used = nodes.take(OFFER, 3)
    for count in (1, 3):
        nodes.begin()
        taken = nodes.take(OFFER, count)
    assert taken[0].node is used[0].node
    assert taken[2].node is not used[2].node


def test_a_node_that_has_not_come_is_full_but_for_what_was_promised_of_it() -> None:
    (new,) = OfferedNodes().take(OFFER, 1)
    assert new.absent == replace(new.node, used=new.node.allocatable)
    promised = new.promised(pod(3))
    assert promised == replace(new.absent, terminating=pod(3))
    assert new.promised(pod(3)) is promised
    assert new.promised(NOTHING).terminating == NOTHING
