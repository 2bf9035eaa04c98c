"""What the nodes of a GpuPool cost, whether the cloud may take them back, and who accepts that."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from drumline_api.assignment import ObjectName
from drumline_api.base import ApiModel, Rule, Timestamp, keyed_by
from drumline_api.money import PRICE_PATTERN

CAPACITY_TYPE_LABEL: Final = "karpenter.sh/capacity-type"
"""Karpenter's label of its nodes: on-demand, spot or reserved."""


Price = Annotated[str, Field(pattern=PRICE_PATTERN, max_length=13)]
"""Of one GPU for an hour: a decimal with up to six places, such as '2.50'."""
SpotChoice = Literal["Prefer", "Avoid", "Only", "Never", "Surplus"]


class PoolCapacity(ApiModel):
    """How the nodes of the pool are paid for."""

    type: Literal["OnDemand", "Spot", "Reserved"] = "OnDemand"
    """What the cloud promises, as Karpenter's label karpenter.sh/capacity-type says it. OnDemand:
    the node stays. Spot: the cloud may take it back at a short notice. Reserved: the node stays,
    and is paid for whether it is used or not. Default: OnDemand."""
    price_per_gpu_hour: Price | None = None
    """What one GPU costs for an hour, a decimal with up to six places, such as '2.50': a node's
    price divided by its GPUs. All pools of a cluster are priced in one currency, whichever that is.
    A part of a GPU costs its share of it. Absent: not known."""


class InterruptionDay(ApiModel):
    """What became of a pool's GPUs on one day."""

    day: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$", max_length=10)]
    """The day (UTC)."""
    gpu_seconds: int = 0
    """GPU-seconds that jobs held."""
    reclaimed_nodes: int = 0
    """Nodes whose reclaim was announced."""
    lost_gpu_seconds: int = 0
    """GPU-seconds that the gangs on these nodes needed to start again."""


class InterruptionsStatus(ApiModel):
    """How often the nodes of a spot pool were taken back, in the last 30 days."""

    gpu_hours: int
    """Whole GPU-hours that jobs held."""
    reclaimed_nodes: int
    """Nodes whose reclaim was announced."""
    lost_percent: int
    """How much more is paid for the work that is kept, in percent: pools are compared by
    pricePerGpuHour with this on top."""
    reclaiming: Annotated[list[ObjectName] | None, Field(max_length=256)] = None
    """Nodes with such an announcement that are still there; counted already."""
    until: Timestamp
    """Up to when is counted."""
    days: Annotated[
        list[InterruptionDay] | None, Field(max_length=30, json_schema_extra=keyed_by("day"))
    ] = None
    """The same by day. For a new leader."""


CAPACITY_AGREES: Final = Rule(
    rule=f"!has(self.capacity) || !('{CAPACITY_TYPE_LABEL}' in self.nodeSelector)"
    f" || self.nodeSelector['{CAPACITY_TYPE_LABEL}'] == {{'OnDemand': 'on-demand',"
    " 'Spot': 'spot', 'Reserved': 'reserved'}[self.capacity.type]",
    message=f"capacity.type is not what nodeSelector asks for in {CAPACITY_TYPE_LABEL}; make both"
    " say the same (on-demand: OnDemand, spot: Spot, reserved: Reserved)",
    field_path=".capacity.type",
)
"""Of a GpuPool's spec: the nodes it selects are what it says they are."""
