"""A gang is told that the labels of its nodes no longer name one required domain."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.reconciler.surroundings import broken_domain
from drumline.controller.state.cluster import ClusterCache
from tests.builders import a_job, admitted
from tests.unit.controller.views import node_view, pool_view

LEVELS = [{"name": name, "nodeLabel": name} for name in ("block", "rack", "host")]
WHOLE = {"block": "b-0", "rack": "r-0"}


def warning_of(*labels: dict[str, str], required: str = "rack") -> str:
    """Return what a job on nodes with these labels is told."""
    state, pool = ClusterCache(nodes=NodeCache(clock=lambda: 0.0)), pool_view()
    state.on_pool(None, replace(pool, spec={**pool.spec, "topologyLevels": LEVELS}))
    for name, own in zip(("node-a", "node-b"), labels, strict=False):
        state.nodes.on_node(None, node_view(name, labels={"gpu": "h100", **own, "host": name}))
    return broken_domain(admitted(a_job(topology={"required": required})), state)


@pytest.mark.parametrize(
    ("other", "names", "label"),
    [
        ({"block": "b-0", "rack": "r-9"}, "r-0 and r-9", "rack"),
        ({"block": "b-1", "rack": "r-0"}, "b-0 and b-1", "block"),  # of the same name elsewhere
        ({"block": "b-0"}, "r-0 and none", "rack"),
        ({}, "b-0 and none", "block"),
    ],
)
def test_a_label_that_moved_or_was_removed_breaks_the_domain(
    other: dict[str, str], names: str, label: str
) -> None:
    text = warning_of(WHOLE, other)
    assert f"{names} now; restore the label {label}," in text


def test_a_gang_in_one_domain_is_told_nothing() -> None:
    assert not warning_of(WHOLE, WHOLE)
    assert not warning_of(WHOLE, {"block": "b-0", "rack": "r-9"}, required="block")
    assert not warning_of(WHOLE), "the other node was deleted"
    assert "none" in warning_of({"block": "b-0"}, {"block": "b-0"})
