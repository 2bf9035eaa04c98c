"""Price and capacity type of nodes, and which of them a queue or a gang accepts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CapacityType(StrEnum):
    """The provider's terms for nodes: Karpenter's karpenter.sh/capacity-type."""

    ON_DEMAND = "OnDemand"
    SPOT = "Spot"
    """The provider may take the nodes back at short notice."""
    RESERVED = "Reserved"


class SpotRule(StrEnum):
    """The use of spot pools."""

    PREFER = "Prefer"
    """Spot pools come before all others."""
    AVOID = "Avoid"
    """Spot pools come after all others."""
    ONLY = "Only"
    NEVER = "Never"
    SURPLUS = "Surplus"
    """Spot pools hold only the surplus of elastic gangs (`surplus_gang.with_surplus`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRule:
    """The pools that a queue or a gang accepts, by capacity type and price."""

    spot: SpotRule | None = None
    """None: spot pools are treated like any other pool."""
    max_price: int | None = None
    """Highest accepted price of a GPU-hour, in millionths. With a limit, pools without a price are
    not accepted. None: no limit."""


ANY_PRICE = PriceRule()
