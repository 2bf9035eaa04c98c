"""What the benchmark measures and how its figures are computed. No torch.

    time                = median over the repeats of the slowest rank's
    algorithm bandwidth = size / time
    bus bandwidth       = algorithm bandwidth x the share of the size on the busiest link

so that the bus bandwidth of every collective is comparable with the link's own, as in nccl-tests.
The size is that of the largest tensor that a rank passes in or gets out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from drumline_trainer.layout import Axis, Layout

_OF_EXPERTS = (Axis.EXPERT, Axis.EXPERT_FSDP, Axis.EXPERT_DATA)


class Collective(StrEnum):
    """Named as torch names them."""

    BROADCAST = "broadcast"
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    P2P = "p2p"
    """Every rank sends to the next one at once."""

    @property
    def formula(self) -> str:
        """The share of the size that the busiest link carries, for n ranks."""
        match self:
            case Collective.ALL_REDUCE:
                return "2 (n - 1) / n"
            case Collective.ALL_GATHER | Collective.REDUCE_SCATTER | Collective.ALL_TO_ALL:
                return "(n - 1) / n"
            case Collective.BROADCAST | Collective.P2P:
                return "1"

    def bus_factor(self, ranks: int) -> float:
        """`formula` as a number."""
        match self:
            case Collective.ALL_REDUCE:
                return 2 * (ranks - 1) / ranks
            case Collective.ALL_GATHER | Collective.REDUCE_SCATTER | Collective.ALL_TO_ALL:
                return (ranks - 1) / ranks
            case Collective.BROADCAST | Collective.P2P:
                return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredAxis:
    """Axes of a layout with the same sets of ranks; all sets are measured at once."""

    axes: tuple[Axis, ...]
    sets: tuple[tuple[int, ...], ...]

    @property
    def name(self) -> str:
        """The names of the axes."""
        return ", ".join(self.axes)

    @property
    def ranks(self) -> int:
        """Number of ranks in a set."""
        return len(self.sets[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The time of a collective at one size."""

    axis: str
    ranks: int
    collective: Collective
    by: str
    """`torch`, or the name of an algorithm of this package."""
    bytes: int
    seconds: float

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes per second."""
        return self.bytes / self.seconds

    @property
    def bus_bandwidth(self) -> float:
        """Bytes per second."""
        return self.algorithm_bandwidth * self.collective.bus_factor(self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyBandwidthFit:
    """time = alpha + size / beta."""

    alpha: float
    """Latency in seconds."""
    beta: float
    """Bandwidth for large sizes in bytes per second."""


def measured_axes(layout: Layout) -> tuple[MeasuredAxis, ...]:
    """The axes of more than one rank, each set of ranks once; experts' where they have ranks."""
    axes_by_sets: dict[tuple[tuple[int, ...], ...], list[Axis]] = {}
    for axis in Axis:
        sets = layout.groups(axis)
        if len(sets[0]) > 1 and (layout.expert > 1 or axis not in _OF_EXPERTS):
            axes_by_sets.setdefault(sets, []).append(axis)
    return tuple(MeasuredAxis(axes=tuple(axes), sets=sets) for sets, axes in axes_by_sets.items())


def nodes_of(ranks: Sequence[int], *, per_node: int) -> tuple[tuple[int, ...], ...]:
    """Cut a set of ranks for the two-level all-reduce; empty where that is not possible.

    By their nodes where that gives equal parts; a single node is cut as if it were several, to show
    the algorithm.
    """
    by_node: dict[int, list[int]] = {}
    for rank in ranks:
        by_node.setdefault(rank // per_node, []).append(rank)
    sizes = {len(node) for node in by_node.values()}
    if len(sizes) == 1 and 1 < min(sizes) < len(ranks):
        return tuple(map(tuple, by_node.values()))
    size = max(d for d in range(1, len(ranks)) if len(ranks) % d == 0 and d * d <= len(ranks))
    return tuple(tuple(ranks[at : at + size]) for at in range(0, len(ranks), size)) * (size > 1)


def fit(rows: Sequence[Measurement]) -> LatencyBandwidthFit | None:
    """Fit a line by least squares of relative errors; None for less than two sizes.

    With absolute errors the largest size alone would decide, and alpha would be noise.
    """
    if len({row.bytes for row in rows}) < 2:
        return None
    weights = [1 / row.seconds**2 for row in rows]
    total = sum(weights)
    size = sum(w * row.bytes for w, row in zip(weights, rows, strict=True)) / total
    time = sum(w * row.seconds for w, row in zip(weights, rows, strict=True)) / total
    spread = sum(w * (row.bytes - size) ** 2 for w, row in zip(weights, rows, strict=True))
    together = sum(
        w * (row.bytes - size) * (row.seconds - time) for w, row in zip(weights, rows, strict=True)
    )
    if together <= 0:
        return None  # larger sizes were not slower: no bandwidth can be fitted
    slope = together / spread
    return LatencyBandwidthFit(alpha=max(0.0, time - slope * size), beta=1 / slope)
