"""Elastic gangs: smaller where a member is lost and nothing is free, larger when there is room."""

from __future__ import annotations

import pytest

from drumline_contract import Progress
from tests.integration.operator.conftest import Site
from tests.integration.operator.trainers import Trainers
from tests.kube import Json
from tools.cluster.kwok import fake_node

pytestmark = pytest.mark.usefixtures("operator")

SAVED = Progress(step=30, total_steps=100, checkpoint_step=30, checkpoint_digest="digest-30")


def add_node(site: Site) -> str:
    """One more node for the pool."""
    last = max(int(name.rpartition("-")[2]) for name in site.nodes)
    node = fake_node(last + 1, gpus=8, nodes_per_rack=2)
    node["metadata"]["labels"]["drumline.test/site"] = site.pool
    site.kube.create(node)
    return node["metadata"]["name"]


def member_nodes(job: Json) -> list[str]:
    places = job["status"]["assignment"]
    return [places.get("prefix", "") + rest for rest in places["nodes"]]


def test_a_gang_shrinks_on_a_loss_and_grows_back_when_there_is_room(site: Site) -> None:
    with Trainers(site, "gang", saves=SAVED) as gang:
        gang.submit(nodes=4, minNodes=2)
        gang.attend("0-g1", "1-g1", "2-g1", "3-g1")
        first = gang.running(1)
        before = gang.uids()
        site.kube.delete("nodes", member_nodes(first)[2])
        smaller = gang.running(2)
        leader = gang.agents["gang-0-g1"]
        assert [member.index for member in leader.records[-1].members] == [0, 1, 3]
        assert smaller["status"]["ready"] == "3/3"
        node = add_node(site)
        try:
            gang.attend("0-g1", "1-g1", "3-g1", "2-g3")
            whole = gang.running(3)
        finally:
            site.kube.delete("nodes", node)
        record = leader.records[-1]
        after = gang.uids()
        assert [member.index for member in record.members] == [0, 1, 2, 3]
        assert record.members[2].pod_uid == after["gang-2-g3"]
        assert node in member_nodes(whole)
        for name in ("gang-0-g1", "gang-1-g1", "gang-3-g1"):
            assert after[name] == before[name]


def test_a_gang_starts_as_large_as_there_is_room(site: Site) -> None:
    site.submit("other", nodes=1, gpusPerNode=8)
    site.wait("other", lambda job: bool((job or {}).get("status", {}).get("assignment")))
    with Trainers(site, "gang", saves=SAVED) as gang:
        gang.submit(nodes=4, minNodes=2)
        gang.attend("0-g1", "1-g1", "2-g1")
        gang.running(1)
        site.kube.delete("trainingjobs", "other", site.namespace)
        gang.attend("0-g1", "1-g1", "2-g1", "3-g2")
        gang.running(2)
        sizes = [len(record.members) for record in gang.agents["gang-0-g1"].records]
        assert sizes == [3, 4]
