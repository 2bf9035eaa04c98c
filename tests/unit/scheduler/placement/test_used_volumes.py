"""Claims and volumes of gangs that got, or keep, places in a cycle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import Gang
from drumline_scheduler.cycle_cache import CycleCache
from drumline_scheduler.model import AttachedVolumes, Policy, VolumeReach
from drumline_scheduler.placement.cluster_view import ClusterView
from drumline_scheduler.placement.search import Search
from tests.unit.scheduler.builders import cluster, gang, node, queue

ONE_NODE = VolumeReach(name="claim data", claim="team/data")
ONE_POD = replace(ONE_NODE, one_pod=True)
DISKS = AttachedVolumes(driver="disks", limit=1)


def view() -> ClusterView:
    nodes = (node("n0", gpus=8), replace(node("n1", gpus=8), attached=(DISKS,)))
    snapshot = cluster(*nodes, queues=(queue("research", 16),))
    return CycleCache().cluster_view(snapshot=snapshot, policy=Policy())


def usable(view: ClusterView, gang: Gang) -> list[bool]:
    search = view.search(gang=gang, pool="h100", pods=1)
    assert isinstance(search, Search)
    return list(search.index.eligible)


def start(view: ClusterView, gang: Gang, place: str) -> None:
    view.take(gang=gang, pool="h100", nodes=(place,))
    view.quota.hold(gang=gang, pool="h100", size=1)


def disk(name: str) -> VolumeReach:
    return VolumeReach(name=name, driver="disks", volume=name)


@pytest.mark.parametrize(
    ("mine", "other", "beside"),
    [
        (ONE_NODE, ONE_NODE, [False, True]),
        (ONE_POD, ONE_POD, [False, False]),
        (replace(ONE_POD, claim="team/more"), ONE_POD, [True, True]),
        (disk("a"), disk("b"), [True, False]),
        (disk("a"), disk("a"), [True, True]),
    ],
)
def test_a_gang_that_lost_its_places_uses_no_volume(
    mine: VolumeReach, other: VolumeReach, beside: list[bool]
) -> None:
    cluster, first = view(), gang("first", volumes=(mine,))
    second = gang("second", volumes=(other,))
    assert usable(cluster, second) == [True, True]
    start(cluster, first, "n1")
    assert usable(cluster, second) == beside
    assert usable(cluster.copy(), second) == beside
    undo = cluster.dismiss(gang=first, pool="h100")
    assert usable(cluster, second) == [True, True]
    undo()
    assert usable(cluster, second) == beside
