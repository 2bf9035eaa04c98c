"""Define what the nodes of a GpuPool cost, and whether the cloud may reclaim them."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from drumline_api.assignment import ObjectName
from drumline_api.base import ApiModel, Rule, Timestamp, keyed_by
from drumline_api.money import PRICE_PATTERN

CAPACITY_TYPE_LABEL: Final = "karpenter.sh/capacity-type"
"""Label of Karpenter's nodes: on-demand, spot or reserved."""


Price = Annotated[str, Field(pattern=PRICE_PATTERN, max_length=13)]
"""Price of one GPU for one hour: a decimal with up to six places, such as '2.50'."""
SpotChoice = Literal["Prefer", "Avoid", "Only", "Never", "Surplus"]


class PoolCapacity(ApiModel):
    """Capacity type and price of the pool's nodes."""

    type: Literal["OnDemand", "Spot", "Reserved"] = "OnDemand"
    """Guarantee of the cloud, as in Karpenter's label karpenter.sh/capacity-type. OnDemand: the
    node stays. Spot: the cloud may reclaim the node at short notice. Reserved: the node stays, and
    you pay for it even if it is unused. Default: OnDemand."""
    price_per_gpu_hour: Price | None = None
    """Price of one GPU for one hour, a decimal with up to six places, such as '2.50'. It is a
    node's price divided by its number of GPUs. All pools of a cluster use one currency of your
    choice. A GPU partition costs its share. Unset: not known."""


class InterruptionDay(ApiModel):
    """Use and interruptions of a pool's GPUs on one day."""

    day: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$", max_length=10)]
    """Day (UTC)."""
    gpu_seconds: int = 0
    """GPU-seconds held by jobs."""
    reclaimed_nodes: int = 0
    """Number of nodes whose reclaim was announced."""
    lost_gpu_seconds: int = 0
    """GPU-seconds that the gangs on these nodes needed to start again."""


class InterruptionsStatus(ApiModel):
    """Interruptions of a spot pool's nodes in the last 30 days."""

    gpu_hours: int
    """Whole GPU-hours held by jobs."""
    reclaimed_nodes: int
    """Number of nodes whose reclaim was announced."""
    lost_percent: int
    """Extra cost of the work that is kept, in percent. Pools are compared by pricePerGpuHour
    increased by this percentage."""
    reclaiming: Annotated[list[ObjectName] | None, Field(max_length=256)] = None
    """Nodes with an announced reclaim that still exist. They are already counted."""
    until: Timestamp
    """Time up to which interruptions are counted."""
    days: Annotated[
        list[InterruptionDay] | None, Field(max_length=30, json_schema_extra=keyed_by("day"))
    ] = None
    """Interruptions by day. A new leader reads them."""


CAPACITY_AGREES: Final = Rule(
    rule=f"!has(self.capacity) || !('{CAPACITY_TYPE_LABEL}' in self.nodeSelector)"
    f" || self.nodeSelector['{CAPACITY_TYPE_LABEL}'] == {{'OnDemand': 'on-demand',"
    " 'Spot': 'spot', 'Reserved': 'reserved'}[self.capacity.type]",
    message=f"capacity.type differs from {CAPACITY_TYPE_LABEL} in nodeSelector; set both to the"
    " same type (on-demand: OnDemand, spot: Spot, reserved: Reserved)",
    field_path=".capacity.type",
)
"""Rule of a GpuPool's spec: `capacity.type` matches the nodes that it selects."""
