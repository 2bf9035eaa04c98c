"""LimitRanges against the claims that a start makes for its pods. Pure.

The API server applies them when the claim of an ephemeral volume is created. That is after the pod
and after an eviction, so a dry run of the pod does not show them.

Example: a LimitRange with `max: {storage: 5Gi}` for claims, and a volume of 10 GiB. The claim would
be rejected, and its pod would never start.
https://kubernetes.io/docs/concepts/policy/limit-range
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLimits:
    """The bounds of a LimitRange on the storage of a claim, in bytes."""

    name: str
    """Name of the LimitRange."""
    least: int | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedClaim:
    """A claim that is made for each pod."""

    volume: str
    """Name of the pod's volume."""
    storage_bytes: int
    storage_class: str | None = None
    """None: the cluster's default one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimOutsideLimits:
    """A claim that a LimitRange rejects."""

    claim: PlannedClaim
    limits: ClaimLimits

    def message(self) -> str:
        """Return the sentence for users."""
        least, most, asked = self.limits.least, self.limits.most, self.claim.storage_bytes
        bound = f"at least {least}" if least is not None and asked < least else f"at most {most}"
        return (
            f"LimitRange {self.limits.name} rejects the claim of volume {self.claim.volume}:"
            f" it requests {asked} bytes of storage, {bound} are allowed"
        )


def claim_outside_limits(
    claims: Iterable[PlannedClaim], limits: Iterable[ClaimLimits]
) -> ClaimOutsideLimits | None:
    """Return the first claim that a LimitRange rejects, or None.

    Args:
        claims: the claims that the start makes.
        limits: bounds of the namespace.
    """
    bounds = tuple(limits)
    for claim in claims:
        for each in bounds:
            is_small = each.least is not None and claim.storage_bytes < each.least
            is_large = each.most is not None and claim.storage_bytes > each.most
            if is_small or is_large:
                return ClaimOutsideLimits(claim=claim, limits=each)
    return None
