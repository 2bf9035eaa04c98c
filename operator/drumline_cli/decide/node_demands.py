"""Find the operator's requests to autoscalers, from the existing objects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from drumline.controller.pools.autoscaling import demands_in, offers_of, timeouts_of
from drumline.controller.pools.node_supply import supply_of
from drumline.controller.state.cluster import ClusterCache
from drumline.kube.views import PodView
from drumline_api.gpupool import GpuPoolSpec
from drumline_scheduler.autoscaling.node_demands import NodeDemands, demands_after
from drumline_scheduler.decisions import Decisions
from drumline_scheduler.forecast.expected_starts import ExpectedStart
from drumline_scheduler.forecast.node_times import NodeTimes, node_starts
from drumline_scheduler.model import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDemands:
    """Requests as a new leader finds them: placeholders, and the statuses of pools."""

    pools: Mapping[str, GpuPoolSpec] = field(default_factory=dict[str, GpuPoolSpec])
    demands: NodeDemands = field(default_factory=NodeDemands)
    times: NodeTimes = field(default_factory=NodeTimes)
    limited: Collection[str] = ()
    """CSI drivers that can attach a limited number of volumes to some node."""

    def shown_to(self, snapshot: Snapshot, *, now: float) -> Snapshot:
        """Return the snapshot as the operator's cycle is shown it."""
        offers = offers_of(self.pools, limited=self.limited)
        return self.demands.shown_to(snapshot, offers=offers, now=now) if offers else snapshot

    def starts_after(self, decisions: Decisions, *, now: float) -> dict[str, ExpectedStart]:
        """Return the expected starts, by uid, of gangs that wait for nodes after a cycle."""
        after = demands_after(
            self.demands,
            needs=decisions.needs_nodes,
            started={placed.uid for placed in decisions.placed},
            bound=(),
            timeouts=timeouts_of(self.pools),
            now=now,
        )
        return node_starts(after.demands.open, times=self.times, now=now)


def known_demands(
    state: ClusterCache,
    *,
    placeholders: Iterable[PodView],
    statuses: Mapping[str, Mapping[str, Any]],
) -> KnownDemands:
    """Return the requests.

    Args:
        state: the pools, and the limits of CSI drivers.
        placeholders: the pods that ask for nodes.
        statuses: statuses of the pools, by name.
    """
    supply = supply_of(statuses)
    return KnownDemands(
        pools=state.pools.by_name,
        demands=NodeDemands(open=demands_in(placeholders), backoffs=supply.backoffs),
        times=supply.times,
        limited=state.volumes.csi.limited,
    )
