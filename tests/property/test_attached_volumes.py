"""Compare the cache of attached volumes with a count from all objects, after random events."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from msgspec import structs

from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state.cluster import ClusterCache
from drumline.kube.views import (
    ClaimView,
    CsiNodeView,
    PodView,
    StorageClassView,
    VolumeView,
)
from drumline_scheduler.model import AttachedVolumes
from tests.unit.controller.views import foreign_pod, node_view, pool_view, queue_view

NODES = ("node-0", "node-1", "node-2")
DRIVERS = ("disks", "files", "blocks")
NAMES = ("a", "b", "c", "d")


class RandomEvents:
    """A cache that receives random events, and the present objects."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.state = ClusterCache(nodes=NodeCache(clock=lambda: 0.0))
        self.state.on_pool(None, pool_view())
        self.state.on_queue(None, queue_view())
        for name in NODES:
            self.state.nodes.on_node(None, node_view(name))
        self.pods: dict[str, PodView] = {}
        self.claims: dict[str, ClaimView] = {}
        self.volumes: dict[str, VolumeView] = {}
        self.classes: dict[str, StorageClassView] = {}
        self.limits: dict[str, CsiNodeView] = {}

    def happens(self) -> None:
        name, pick = self.chance.choice(NAMES), self.chance.choice
        gone = self.chance.random() < 0.3
        match self.chance.randrange(5):
            case 0:
                pod = structs.replace(
                    foreign_pod(name, node=pick(NODES)),
                    namespace="team",
                    claims=tuple(self.chance.sample(NAMES, self.chance.randint(0, 3))),
                )
                old, new = self._next(self.pods, name, None if gone else pod)
                if old is not None and new is not None:  # a bound pod keeps its node
                    new = self.pods[name] = structs.replace(new, node_name=old.node_name)
                self.state.on_pod(old, new)
            case 1:
                bound = pick([name, ""])  # no two claims share a volume
                claim = ClaimView(namespace="team", name=name, uid=name, resource_version="1",
                                  volume=bound, storage_class=pick(DRIVERS))  # fmt: skip
                self.state.volumes.on_claim(*self._next(self.claims, name, None if gone else claim))
            case 2:
                volume = VolumeView(name=name, uid=name, resource_version="1",
                                    driver=pick([*DRIVERS, ""]), handle=pick("xy"))  # fmt: skip
                sides = self._next(self.volumes, name, None if gone else volume)
                self.state.volumes.on_volume(*sides)
            case 3:
                name = pick(DRIVERS)
                storage = StorageClassView(name=name, provisioner=pick(DRIVERS))
                sides_of = self._next(self.classes, name, None if gone else storage)
                self.state.volumes.on_storage_class(*sides_of)
            case _:
                name = pick(NODES)
                of = tuple((each, self.chance.randint(0, 3)) for each in self._some_drivers())
                limits = self._next(
                    self.limits, name, None if gone else CsiNodeView(name=name, limits=of)
                )
                self.state.volumes.csi.on_node(*limits)

    def _some_drivers(self) -> list[str]:
        return self.chance.sample(DRIVERS, self.chance.randint(0, 2))

    def _next(self, by_name: dict[str, Any], name: str, new: Any) -> tuple[Any, Any]:
        """Store an object. Return the previous object and the new one."""
        old = by_name.pop(name, None)
        if new is not None:
            by_name[name] = new
        return old, new

    def attached(self, node: str) -> tuple[AttachedVolumes, ...]:
        """Count the attached volumes of a node from the objects."""
        used: dict[str, set[str]] = {}
        for pod in self.pods.values():
            for name in pod.claims if pod.node_name == node else ():
                claim = self.claims.get(name)
                if claim is None:
                    continue
                if claim.volume:
                    volume = self.volumes.get(claim.volume)
                    if volume is not None:
                        used.setdefault(volume.driver, set()).add(volume.handle)
                elif storage := self.classes.get(claim.storage_class):
                    used.setdefault(storage.provisioner, set()).add(f"team/{name}")
        limits = dict(self.limits[node].limits) if node in self.limits else {}
        return tuple(
            AttachedVolumes(driver=each, limit=limits[each], volumes=frozenset(used.get(each, ())))
            for each in sorted(limits)
        )


@pytest.mark.parametrize("seed", range(20))
def test_attached_volumes_equal_a_count_from_the_objects(seed: int) -> None:
    events = RandomEvents(seed)
    for _ in range(60):
        events.happens()
        nodes = {node.name: node for node in events.state.scheduling.snapshot(now=0.0).nodes}
        offered = {each for view in events.limits.values() for each, _ in view.limits}
        for name in NODES:
            expected = events.attached(name)
            assert nodes[name].attached == expected
            amounts = dict(nodes[name].allocatable.extended)
            assert {f"attachable-volumes-csi-{each}" for each in offered} - amounts.keys() == {
                f"attachable-volumes-csi-{each.driver}" for each in expected if not each.limit
            }
