"""What the nodes of a GpuPool cost, whether the cloud may take them back, and who accepts that."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from drumline.api.base import ApiModel, Rule
from drumline.cost.money import PRICE_PATTERN

CAPACITY_TYPE_LABEL: Final = "karpenter.sh/capacity-type"
"""Karpenter's label of its nodes: on-demand, spot or reserved."""


Price = Annotated[str, Field(pattern=PRICE_PATTERN, max_length=13)]
"""Of one GPU for an hour: a decimal with up to six places, such as '2.50'."""
SpotChoice = Literal["Prefer", "Avoid", "Only", "Never"]


class PoolCapacity(ApiModel):
    """How the nodes of the pool are paid for."""

    type: Literal["OnDemand", "Spot", "Reserved"] = "OnDemand"
    """What the cloud promises, as Karpenter's label karpenter.sh/capacity-type says it. OnDemand:
    the node stays. Spot: the cloud may take it back at a short notice. Reserved: the node stays,
    and is paid for whether it is used or not. Default: OnDemand."""
    price_per_gpu_hour: Price | None = None
    """What one GPU costs for an hour, a decimal with up to six places, such as '2.50': a node's
    price divided by its GPUs. All pools of a cluster are priced in one currency, whichever that is.
    Absent: not known."""


CAPACITY_AGREES: Final = Rule(
    rule=f"!has(self.capacity) || !('{CAPACITY_TYPE_LABEL}' in self.nodeSelector)"
    f" || self.nodeSelector['{CAPACITY_TYPE_LABEL}'] == {{'OnDemand': 'on-demand',"
    " 'Spot': 'spot', 'Reserved': 'reserved'}[self.capacity.type]",
    message=f"capacity.type is not what nodeSelector asks for in {CAPACITY_TYPE_LABEL}; make both"
    " say the same (on-demand: OnDemand, spot: Spot, reserved: Reserved)",
    field_path=".capacity.type",
)
"""Of a GpuPool's spec: the nodes it selects are what it says they are."""
