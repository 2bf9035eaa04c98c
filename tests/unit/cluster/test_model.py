from __future__ import annotations

from pathlib import Path

import pytest

from tools.cluster.model import Cluster, ClusterError, ClusterSpec, NodeInfo, Provider, read_cluster


@pytest.mark.parametrize(
    ("nodes", "racks", "expected"),
    [
        (3, 2, ["rack-0", "rack-0", "rack-1"]),
        (4, 2, ["rack-0", "rack-0", "rack-1", "rack-1"]),
        (2, 5, ["rack-0", "rack-1"]),
        (3, 1, ["rack-0", "rack-0", "rack-0"]),
    ],
)
def test_racks_are_filled_in_order(nodes: int, racks: int, expected: list[str]) -> None:
    spec = ClusterSpec(nodes=nodes, racks=racks)
    assert [spec.rack_of(index) for index in range(nodes)] == expected


@pytest.mark.parametrize("name", ["", "Upper", "a.b", "a/b", "-a", "a" * 41, "a b"])
def test_a_name_that_cannot_name_a_namespace_is_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="cluster name"):
        ClusterSpec(name=name)


def test_more_nodes_than_a_machine_takes_are_refused() -> None:
    with pytest.raises(ClusterError, match="0 to 9"):
        ClusterSpec(nodes=10)


def test_a_saved_cluster_reads_back_equal(tmp_path: Path) -> None:
    node = NodeInfo(
        name="node-0",
        address="10.90.0.1",
        pod_cidr="10.244.0.0/24",
        rack="rack-0",
        gpus=2,
        netns="x.node-0",
        folder=tmp_path / "node-0",
    )
    cluster = Cluster(
        name="x",
        provider=Provider.NATIVE,
        kubeconfig=tmp_path / "kubeconfig",
        folder=tmp_path,
        nodes=(node,),
        netns="x.fabric",
    )
    assert read_cluster(tmp_path) is None
    cluster.save()
    assert read_cluster(tmp_path) == cluster
