"""Clusters: names, levels, and what collectives cost on them."""

from __future__ import annotations

import pytest

from drumline_contract.config import ConfigError
from drumline_contract.hardware import GPU_MODELS, LINKS, named_gpu, named_link
from drumline_planner.network import Topology, Wiring, cluster_of, span

from .clusters import cluster

H100, NDR = GPU_MODELS["H100"], LINKS["infiniband-ndr"]


def test_names_are_read_as_people_write_them() -> None:
    assert named_gpu("h200") is GPU_MODELS["H200"]
    assert named_gpu("NVIDIA A100") is GPU_MODELS["A100-80GB"]
    assert named_gpu("amd mi300x") is GPU_MODELS["MI300X"]


@pytest.mark.parametrize(
    ("wanted", "says"),
    [("H10O", "did you mean H100"), ("B2OO", "did you mean B200"), ("A10", "did you mean A100")],
)
def test_an_unknown_gpu_gets_the_nearest(wanted: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"gpu: '{wanted}' is not known; {says}"):
        named_gpu(wanted)


def test_an_unknown_network_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"network: .*did you mean infiniband-ndr"):
        named_link("infinband-ndr")


@pytest.mark.parametrize(
    "wrong", [{"gpus": 0}, {"gpus_per_node": 0}, {"wiring": Wiring(oversubscription=0.5)}]
)
def test_sizes_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    sizes: dict[str, object] = {"gpus": 8, **wrong}
    with pytest.raises(ConfigError, match="must be at least 1"):
        cluster_of(H100, network=NDR, **sizes)  # type: ignore[arg-type]


def test_a_group_inside_a_node_uses_its_links_and_across_nodes_its_ports() -> None:
    on = cluster(64)
    inside = span(on, ranks=8, stride=1)
    assert inside.bandwidth == H100.link_bandwidth
    # all eight of a node cross with eight ports, one of each node with its own only
    assert span(on, ranks=64, stride=1).bandwidth == 8 * NDR.bandwidth
    assert span(on, ranks=8, stride=8).bandwidth == NDR.bandwidth
    assert span(on, ranks=1, stride=8).all_reduce(1e9) == 0.0


def test_collectives_move_what_the_ring_says() -> None:
    group = span(cluster(8), ranks=4, stride=1)
    moved = (group.all_gather(4e9) - group.latency) * group.bandwidth
    assert moved == pytest.approx(3e9)
    assert group.all_reduce(4e9) == pytest.approx(2 * group.all_gather(4e9))
    assert group.all_to_all(4e9) == pytest.approx(group.latency + 3e9 / group.direct)


def sums(wiring: Wiring) -> tuple[float, float]:
    """Seconds of an all-reduce over all nodes, and over the nodes of a group."""
    on = cluster_of(H100, gpus=1024, network=NDR, wiring=wiring)
    return tuple(span(on, ranks=ranks, stride=8).all_reduce(1e9) for ranks in (128, 8))  # type: ignore[return-value]


@pytest.mark.parametrize("topology", [Topology.FAT_TREE, Topology.DRAGONFLY])
def test_what_leaves_an_oversubscribed_group_is_slower(topology: Topology) -> None:
    far, near = sums(Wiring(topology=topology, group=64, oversubscription=16))
    flat_far, flat_near = sums(Wiring())
    assert far > 1.5 * flat_far  # eight of a group cross with eight sixteenths of a port
    assert near == pytest.approx(flat_near)


def test_a_rail_reaches_eight_times_as_many_nodes_before_it_is_shared() -> None:
    wiring = Wiring(topology=Topology.RAIL, group=128, oversubscription=16)
    assert sums(wiring) == pytest.approx(sums(Wiring()))


def test_a_domain_of_many_nodes_is_one_domain() -> None:
    rack = cluster_of(GPU_MODELS["GB200"], gpus=144, network=NDR, gpus_per_node=4)
    assert rack.domain == 72
    assert span(rack, ranks=72, stride=1).bandwidth == GPU_MODELS["GB200"].link_bandwidth
