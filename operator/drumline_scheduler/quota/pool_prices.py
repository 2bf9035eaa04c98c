"""Filter and order pools by capacity type and price.

Both queue and gang have a rule (`PriceRule`), and a pool must satisfy both. So a gang narrows the
choice of its queue and never widens it. The `spot` rule of the gang sets the order.
Without one, the queue's rule does.

    h100 2.50 OnDemand; h100-spot 0.90 Spot, a fifth of its work is lost to reclaims: 1.08

    absent  h100-spot, h100        Only     h100-spot
    Prefer  h100-spot, h100        Never    h100
    Avoid   h100, h100-spot        Surplus  h100; of a surplus gang h100-spot
    at most 2.00: h100-spot
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from drumline_api.money import exact_text
from drumline_scheduler.decisions import BlockReason
from drumline_scheduler.model import CapacityType, Gang, Pool, PriceRule, Queue, SpotRule
from drumline_scheduler.rejections import Rejection, named

Turn = tuple[bool, bool, int]
_WISHES: Final = {
    SpotRule.ONLY: "spot pools only",
    SpotRule.NEVER: "no spot pools",
    SpotRule.SURPLUS: "spot pools for surplus only",
}


def accepts(pool: Pool, *, gang: Gang, queue: Queue) -> bool:
    """Return whether queue and gang both accept the capacity type and price of a pool.

    Args:
        pool: the pool with its price and capacity type.
        gang: the waiting gang.
        queue: the gang's queue.
    """
    return all(
        _has_type(pool, rule, gang=gang) and _is_affordable(pool, rule)
        for rule in (queue.price_rule, gang.price_rule)
    )


def turn_of(pool: Pool, *, gang: Gang, queue: Queue) -> Turn:
    """Return the sort key of a pool: by the rule for spot, then the cheapest first.

    Args:
        pool: the pool with its price and capacity type.
        gang: the waiting gang.
        queue: the gang's queue.
    """
    rule = gang.price_rule.spot or queue.price_rule.spot
    is_spot = pool.capacity is CapacityType.SPOT
    later = (rule is SpotRule.PREFER and not is_spot) or (rule is SpotRule.AVOID and is_spot)
    price = pool.expected_price
    return (later, price is None, price or 0)


def not_accepted(pools: Sequence[Pool], *, gang: Gang, queue: Queue) -> Rejection:
    """Return the rejection of a gang whose rules exclude all these pools (at least one).

    Args:
        pools: the excluded pools.
        gang: the waiting gang.
        queue: the gang's queue.
    """
    rules = ((f"queue {queue.name}", queue.price_rule), ("the job", gang.price_rule))
    # If no capacity type is accepted, that is the reason. Otherwise the
    # price of every accepted type is.
    typed = [pool for pool in pools if all(_has_type(pool, rule, gang=gang) for _, rule in rules)]
    if not typed:
        wishes = " and ".join(
            f"{owner} uses {wish}"
            for owner, rule in rules
            if rule.spot is not None and (wish := _WISHES.get(rule.spot))
        )
        return Rejection(
            reason=BlockReason.CAPACITY_TYPE_NOT_ACCEPTED,
            message=f"{wishes}, but it may only be placed in {_pools(pools)}: change spot, or add"
            " quota in a matching pool",
            needed=gang.gpus,
        )
    limits = [(rule.max_price, owner) for owner, rule in rules if rule.max_price is not None]
    limit, owner = min(limits)
    return Rejection(
        reason=BlockReason.PRICE_TOO_HIGH,
        message=f"{owner} pays at most {exact_text(limit)} per GPU-hour, but it may only be"
        f" placed in {_pools(typed)}: wait for a lower price, or raise maxPricePerGpuHour",
        needed=gang.gpus,
    )


def _has_type(pool: Pool, rule: PriceRule, *, gang: Gang) -> bool:
    is_spot = pool.capacity is CapacityType.SPOT
    match rule.spot:
        case SpotRule.ONLY:
            return is_spot
        case SpotRule.NEVER:
            return not is_spot
        case SpotRule.SURPLUS:
            return is_spot == bool(gang.surplus_of)
        case _:
            return True


def _is_affordable(pool: Pool, rule: PriceRule) -> bool:
    return rule.max_price is None or (pool.price is not None and pool.price <= rule.max_price)


def _pools(pools: Iterable[Pool]) -> str:
    """Return pools as text: `h100 (OnDemand, 2.50)`."""
    return named(
        [
            f"{pool.name} ({pool.capacity}, {_price(pool)})"
            for pool in sorted(pools, key=lambda pool: pool.name)
        ]
    )


def _price(pool: Pool) -> str:
    return "no price" if pool.price is None else exact_text(pool.price)
