"""Nobody starts, grows or is promised a place in a pool that its queue or it does not accept.

Read from the definitions of `PriceRule`. What runs where it may not any more goes on, is repaired,
and is moved: none of these is a start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drumline_scheduler.decisions import Decisions
from drumline_scheduler.model import CapacityType, Gang, Pool, PriceRule, Snapshot, SpotRule


def price_violations(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions
) -> list[str]:
    """Starts, growth and promises in pools of a wrong capacity type or price."""
    gangs = {held.gang.uid: held.gang for held in snapshot.admitted}
    gangs.update((gang.uid, gang) for gang in pending)
    pools = {pool.name: pool for pool in snapshot.pools}
    rules = {queue.name: queue.price_rule for queue in snapshot.queues}
    return [
        f"{gangs[uid].key} {does} in pool {name}, which {owner} does not accept"
        for uid, name, does in _given(snapshot, pending=pending, decisions=decisions)
        for owner, rule in (
            ("its queue", rules.get(gangs[uid].queue, PriceRule())),
            ("it", gangs[uid].price_rule),
        )
        if name in pools and not suits(pools[name], rule, gang=gangs[uid])
    ]


def _given(
    snapshot: Snapshot, *, pending: Sequence[Gang], decisions: Decisions
) -> Iterator[tuple[str, str, str]]:
    """Uid, pool and what a gang does there; what was promised before keeps its promise."""
    promised = {gang.uid: gang.nominated_pool for gang in pending if gang.nominated}
    for placed in decisions.placed:
        if not placed.replaced and promised.get(placed.uid) != placed.pool:
            yield placed.uid, placed.pool, "starts"
    sizes = {held.gang.uid: len(held.assignment) for held in snapshot.admitted}
    for resized in decisions.resized:
        if len(resized.kept) + len(resized.added) > sizes[resized.uid]:
            yield resized.uid, resized.pool, "grows"
    for preemption in decisions.preemptions:
        if not preemption.replaced:
            yield preemption.uid, preemption.pool, "preempts"
    for need in decisions.needs_nodes:
        if need.uid not in sizes:
            yield need.uid, need.pool, "asks for nodes"


def suits(pool: Pool, rule: PriceRule, *, gang: Gang) -> bool:
    """Whether a rule, of a gang or of its queue, has the gang in a pool."""
    if pool.capacity is CapacityType.SPOT and rule.spot is SpotRule.NEVER:
        return False
    if pool.capacity is not CapacityType.SPOT and rule.spot is SpotRule.ONLY:
        return False
    if rule.spot is SpotRule.SURPLUS and gang.surplus_of and pool.capacity is not CapacityType.SPOT:
        return False
    if rule.spot is SpotRule.SURPLUS and pool.capacity is CapacityType.SPOT and not gang.surplus_of:
        return False
    if rule.max_price is None:
        return True
    return pool.price is not None and pool.price <= rule.max_price
