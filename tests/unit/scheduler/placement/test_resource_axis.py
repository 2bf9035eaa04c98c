"""The resources that count: as many as the nodes have, whatever names tenants write."""

from __future__ import annotations

from dataclasses import replace

from drumline_scheduler import (
    BlockReason,
    CycleCache,
    CycleInput,
    Gang,
    Policy,
    Pool,
    Snapshot,
    decide,
)
from drumline_scheduler.placement.resource_axis import UNOFFERED, axis_of
from drumline_scheduler.resources import PLAIN_RESOURCES
from tests.texts import missing
from tests.unit.scheduler.builders import admitted, cluster, gang, node, pod, room, run

RDMA = (("rdma/hca", 1),)


def allowed(snapshot: Snapshot) -> Snapshot:
    """The same with a pool that allows all these devices."""
    names = frozenset({"a.com/none", "a.com/late", "a.com/gone", "rdma/hca"})
    return replace(snapshot, pools=(Pool(name="h100", levels=("rack",), auxiliary=names),))


def wanting(name: str, *resources: str, **changes: object) -> Gang:
    extended = tuple((each, 1) for each in resources)
    return gang(name, per_pod=pod(1, extended=extended), **changes)


def test_names_that_no_node_offers_have_one_place_together() -> None:
    gangs = [wanting(f"g{index}", f"a.com/x{index}", f"a.com/y{index}") for index in range(50)]
    nodes = [node("n0", allocatable=room(extended=(("rdma/hca", 4), ("other/x", 1))))]
    axis = axis_of(waiting=[*gangs, wanting("r", "rdma/hca")], nodes=nodes)
    assert axis.names == (*PLAIN_RESOURCES, "rdma/hca", UNOFFERED)
    assert axis.request(gangs[0].per_pod)[-2:] == (0, 1)
    assert axis.request(pod(1, extended=RDMA))[-2:] == (1, 0)
    assert axis.vector(nodes[0].allocatable)[-2:] == (4, 0)


def test_a_gang_that_wants_one_of_them_fits_nowhere_and_hears_which() -> None:
    snapshot = allowed(cluster(node("n0", allocatable=room(extended=(("rdma/hca", 4),)))))
    decisions = run(snapshot, wanting("a", "a.com/none"), wanting("b", "rdma/hca"))
    assert [placed.key for placed in decisions.placed] == ["training/b"]
    (blocked,) = decisions.blocked
    assert blocked.reason is BlockReason.RESOURCE_NOT_OFFERED
    assert not missing(blocked.message, "a.com/none")


def test_a_node_that_begins_to_offer_it_is_taken_with_the_cache_of_before() -> None:
    cache, waits = CycleCache(), (wanting("a", "a.com/late"),)
    later = node("n0", allocatable=room(extended=(("a.com/late", 1),)))
    for item, places in ((node("n0"), 0), (later, 1), (node("n0"), 0)):
        snapshot = allowed(cluster(item))
        given = CycleInput(snapshot=snapshot, pending=waits, policy=Policy(), now=0.0)
        decisions = decide(given, cache=cache)
        assert len(decisions.placed) == places
        assert decisions == decide(given)


def test_what_a_running_gang_holds_counts_after_its_node_stopped_offering_it() -> None:
    held = admitted(wanting("runs", "a.com/gone"), "n0")
    snapshot = allowed(cluster(node("n0", gpus=4), running=[held]))
    decisions = run(snapshot, wanting("a", "a.com/gone"), gang("b"))
    assert [placed.key for placed in decisions.placed] == ["training/b"]


def test_new_names_do_not_rebuild_the_view_of_the_cluster() -> None:
    cache = CycleCache()
    snapshot = cluster(node("n0"))
    views: list[object] = []
    for index in range(4):
        pending = (wanting("a", f"a.com/x{index}"),)
        decide(
            CycleInput(snapshot=snapshot, pending=pending, policy=Policy(), now=0.0), cache=cache
        )
        views.append(cache._snapshots._cluster)
    assert views[1] is views[2] is views[3]
