"""The caches forget objects that are gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import msgspec
import pytest

from drumline.controller.state.cluster import ClusterCache
from drumline.kube.device_views import DeviceSliceView
from drumline.kube.views import (
    ClaimView,
    CsiNodeView,
    NamespaceView,
    PodPhase,
    RuntimeClassView,
    Sharing,
    StorageClassView,
    VolumeView,
)
from tests.unit.controller.app.test_memory import texts
from tests.unit.controller.views import foreign_pod, node_view, pool_view, priority_view, queue_view
from tests.unit.controller.workload_state import LABELS, NOW, gated, two_nodes

NODE, TEAM = "gone-node", "gone-team"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Objects of one watch, and the function that takes their events."""

    take: Callable[[Any, Any], object]
    views: tuple[Any, ...]

    def come(self) -> None:
        for view in self.views:
            self.take(None, view)

    def go(self) -> None:
        for view in self.views:
            self.take(view, None)


def watched(state: ClusterCache) -> dict[str, Watched]:
    """Objects of every kind, each with a name that no other object has."""
    pods = (
        foreign_pod("gone-runs", node=NODE, labels=LABELS, phase=PodPhase.RUNNING, group="gone-g"),
        foreign_pod("gone-claims", node=NODE, claims=("gone-claim",), phase=PodPhase.RUNNING),
        foreign_pod("gone-nominated", node="", nominated_node=NODE),
        foreign_pod(
            "gone-leaves", node=NODE, terminating=True, deletion_time="2027-01-15T08:00:09Z"
        ),
        gated("gone-gated"),
    )
    claim = ClaimView(
        namespace=TEAM,
        name="gone-claim",
        uid="gone-c",
        resource_version="1",
        volume="gone-pv",
        sharing=Sharing.ONE_POD,
    )
    volume = VolumeView(name="gone-pv", uid="gone-v", resource_version="1", driver="gone-driver")
    volumes = state.volumes
    return {
        "nodes": Watched(take=state.nodes.on_node, views=(node_view(NODE),)),
        "pods": Watched(
            take=state.on_pod,
            views=tuple(msgspec.structs.replace(pod, namespace=TEAM) for pod in pods),
        ),
        "claims": Watched(take=volumes.on_claim, views=(claim,)),
        "volumes": Watched(take=volumes.on_volume, views=(volume,)),
        "classes": Watched(
            take=volumes.on_storage_class, views=(StorageClassView(name="gone-class"),)
        ),
        "drivers": Watched(
            take=volumes.csi.on_node,
            views=(CsiNodeView(name=NODE, limits=(("gone-driver", 4),)),),
        ),
        "slices": Watched(
            take=state.nodes.devices.on_slice,
            views=(
                DeviceSliceView(
                    name="gone-slice",
                    uid="gone-s",
                    resource_version="1",
                    driver="gpu.nvidia.com",
                    pool=NODE,
                    node_name=NODE,
                ),
            ),
        ),
        "namespaces": Watched(
            take=state.namespaces.on_namespace,
            views=(NamespaceView(name=TEAM, uid="gone-n", resource_version="1"),),
        ),
        "runtimes": Watched(
            take=state.on_runtime_class,
            views=(RuntimeClassView(name="gone-rc", uid="gone-r", resource_version="1"),),
        ),
        "priorities": Watched(take=state.on_priority_class, views=(priority_view("gone-p", 1),)),
        "pools": Watched(take=state.on_pool, views=(pool_view("gone-pool", gone="yes"),)),
        "queues": Watched(take=state.on_queue, views=(queue_view("gone-queue"),)),
    }


@pytest.mark.parametrize("order", [*permutations(("nodes", "pods", "claims"))], ids="-".join)
def test_objects_that_are_gone_leave_no_name(order: tuple[str, ...]) -> None:
    """Watches of different kinds are at different versions, so any may be the first."""
    state = two_nodes(quota=64)
    kinds = watched(state)
    for kind in kinds.values():
        kind.come()
    state.observe_budgets(now=NOW)
    assert [held for held in state.scheduling.snapshot(now=NOW).admitted if held.is_foreign]
    state.scheduling.pending()
    for name in (*order, *(name for name in kinds if name not in order)):
        kinds[name].go()
        state.scheduling.snapshot(now=NOW)
    state.scheduling.pending()
    state.observe_budgets(now=NOW)
    kinds.clear()
    assert {text for text in texts(state) if text.startswith("gone")} == set()
