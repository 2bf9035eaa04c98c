"""Clusters made of levels, and what collective operations cost on them: alpha and beta.

A group of ranks with a stride lies on levels: some of its members are neighbours in one domain, and
so on outwards. A ring through all members crosses each level's border once for the members inside;
all of them bring their ports along, so k members of a node cross the border with k ports. A ring is
as fast as its slowest crossing. Latencies add up along a tree: hops inside, and the logarithm of
the parts outside, as NCCL does for large groups.

    X bytes, n ranks    all-reduce 2·X·(n-1)/n   all-gather, reduce-scatter X·(n-1)/n
                        all-to-all: X/n to each, over the level that lies between

Oversubscription (fat tree, Al-Fares et al. 2008) and tapering (dragonfly, Kim et al. 2008) divide
the bandwidth of the outer levels; a rail-optimized network gives rank i of every node its own plane
up to the rail's end. O(levels) each.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from enum import StrEnum

from drumline_contract.config import ConfigError
from drumline_contract.hardware import LINK_LATENCY, GpuCluster, GpuModel, Level, Link


class Topology(StrEnum):
    """Topology of the network between nodes."""

    FAT_TREE = "fat-tree"
    """Leaves of `group` GPUs below spines. Traffic that leaves a leaf shares 1/oversubscription."""
    RAIL = "rail"
    """A leaf connects the GPUs of one position in many nodes: `group` is 8 times as large for the
    neighbors in data parallelism."""
    DRAGONFLY = "dragonfly"
    """Groups that are fully connected inside. Between groups the path is longer and tapered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """Network between nodes."""

    topology: Topology = Topology.FAT_TREE
    group: int = 1 << 30
    """GPUs below one leaf, or in one group of a dragonfly. One level if this exceeds the cluster.
    """
    oversubscription: float = 1.0
    """Ratio of bandwidth into a group to bandwidth out of it. For a dragonfly, its taper."""


def cluster_of(
    gpu: GpuModel,
    *,
    gpus: int,
    network: Link,
    inside: Link | None = None,
    gpus_per_node: int = 8,
    domain: int | None = None,
    wiring: Wiring | None = None,
) -> GpuCluster:
    """Return a cluster of `gpus` devices.

    Args:
        gpu: the device.
        gpus: number of devices.
        network: link from each GPU to other nodes.
        inside: link between the GPUs of a domain; None: the device's own.
        gpus_per_node: GPUs of one host.
        domain: GPUs of one NVLink domain; None: the device's own, at least a node.
        wiring: wiring of the network; None: it is flat.

    Raises:
        ConfigError: a size is not positive, or the oversubscription is below 1.
    """
    wiring = wiring or Wiring()
    # GPUs with a rack-scale domain keep it. Others have the node as their domain.
    size = domain or max(gpu.domain if gpu.domain > 8 else 1, gpus_per_node)
    for name, value in (("domain", size), ("gpus_per_node", gpus_per_node)):
        if value < 1:
            raise ConfigError(f"{name}: must be at least 1, got {value}")
    if wiring.oversubscription < 1:
        raise ConfigError(
            f"oversubscription: must be at least 1, got {wiring.oversubscription:g}; 1 means none"
        )
    bandwidth, latency = gpu.link_bandwidth, LINK_LATENCY
    if inside is not None:
        bandwidth, latency = inside.bandwidth, inside.latency
    levels = [Level(name="domain", gpus=size, bandwidth=bandwidth, latency=latency)]
    group = wiring.group * (8 if wiring.topology is Topology.RAIL else 1)
    # A level without oversubscription is as fast as the outer one, so it is left out.
    if group < gpus and wiring.oversubscription > 1:
        levels.append(
            Level(name="group", gpus=group, bandwidth=network.bandwidth, latency=network.latency)
        )
    # A dragonfly's minimal path between groups crosses one more switch.
    hops = 2.0 if wiring.topology is Topology.DRAGONFLY and group < gpus else 1.0
    outer = wiring.oversubscription if group < gpus else 1.0
    levels.append(
        Level(
            # The outermost level holds all ranks.
            name="cluster",
            gpus=max(gpus, size),
            bandwidth=network.bandwidth / outer,
            latency=network.latency * hops,
        )
    )
    return GpuCluster(gpu=gpu, gpus=gpus, levels=tuple(levels), gpus_per_node=gpus_per_node)


@dataclass(frozen=True, slots=True)
class Span:
    """A group of ranks on the levels of a cluster."""

    ranks: int
    bandwidth: float
    """Return the bandwidth of a ring through all ranks: its slowest link."""
    latency: float
    """Latency of one pass along the ring."""
    crosses: int
    """The outermost level that the group reaches."""
    direct: float
    """Bandwidth between the two ranks that are furthest apart."""
    reach: tuple[tuple[int, float], ...] = ()
    """Number of other ranks that a rank reaches, and the bandwidth, by level."""

    def all_reduce(self, size: float) -> float:
        """Return the seconds for `size` bytes on every rank."""
        return 2 * self.all_gather(size)

    def all_gather(self, size: float) -> float:
        """Return the seconds until every rank has `size` bytes, or its part of their sum."""
        if self.ranks == 1:
            return 0.0
        # A ring sends each rank's part to n - 1 others.
        return self.latency + size * (self.ranks - 1) / self.ranks / self.bandwidth

    def all_to_all(self, size: float) -> float:
        """Return the seconds until each rank has sent `size` bytes, in equal parts to all ranks."""
        if self.ranks == 1:
            return 0.0
        each = size / self.ranks
        # Each level carries the messages to ranks that are first reached there.
        return self.latency + sum(count * each / speed for count, speed in self.reach)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEfficiency:
    """Achieved share of a link's line rate, and latency of messages relative to one packet."""

    domain: float = 1.0
    network: float = 1.0
    latency: float = 1.0


def span(
    cluster: GpuCluster, *, ranks: int, stride: int, efficiency: LinkEfficiency | None = None
) -> Span:
    """Return the location of `ranks` ranks at distance `stride`.

    Args:
        cluster: GPUs and links.
        ranks: number of ranks in a group.
        stride: distance between two ranks of the group.
        efficiency: measured efficiency of the links.
    """
    return _span(cluster.levels, ranks, stride, efficiency or LinkEfficiency())


@functools.lru_cache(maxsize=4096)
def _span(levels: tuple[Level, ...], ranks: int, stride: int, efficiency: LinkEfficiency) -> Span:
    bandwidth, latency, inside, crosses = math.inf, 0.0, 1, 0
    direct = math.inf
    reach: list[tuple[int, float]] = []
    for index, level in enumerate(levels):
        last = index == len(levels) - 1
        # Ranks with a stride: a level holds fewer of them.
        members = ranks if last else min(ranks, max(1, level.gpus // stride))
        if members <= inside:
            continue
        share = efficiency.domain if index == 0 else efficiency.network
        speed = level.bandwidth * share
        # what is inside already brings all its ports along, but never more than it has inside
        bandwidth = min(bandwidth, speed * (inside if index else 1))
        direct = speed
        reach.append((members - inside, speed))
        parts = members / inside
        # Rings inside a domain, trees across nodes, as NCCL chooses.
        hops = members - 1 if index == 0 else math.ceil(math.log2(parts))
        latency += hops * level.latency * efficiency.latency
        inside, crosses = members, index
    return Span(
        ranks=ranks,
        bandwidth=bandwidth,
        latency=latency,
        crosses=crosses,
        direct=direct,
        reach=tuple(reach),
    )
