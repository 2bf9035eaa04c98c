"""What nodes cost and whether they may be taken back, and what of it a queue or a gang accepts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CapacityType(StrEnum):
    """What whoever owns the nodes promises: Karpenter's karpenter.sh/capacity-type."""

    ON_DEMAND = "OnDemand"
    SPOT = "Spot"
    """They may be taken back at a short notice."""
    RESERVED = "Reserved"


class SpotRule(StrEnum):
    """Whether spot pools are used, and when."""

    PREFER = "Prefer"
    """Before all others."""
    AVOID = "Avoid"
    """After all others."""
    ONLY = "Only"
    NEVER = "Never"
    SURPLUS = "Surplus"
    """Only for what an elastic gang has above its smallest size (`mixed.with_surplus`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRule:
    """Which pools a queue or a gang accepts by what they are paid as and cost."""

    spot: SpotRule | None = None
    """None: spot pools are pools like any other."""
    max_price: int | None = None
    """The most that a GPU may cost for an hour, in millionths; of a pool without a price it is not
    known. None: whatever it costs."""


ANY_PRICE = PriceRule()
