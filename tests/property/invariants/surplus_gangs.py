"""What holds of jobs over two pools after a cycle: no surplus gang without the other one."""

from __future__ import annotations

from collections.abc import Iterable

from drumline_scheduler.decisions import Decisions
from drumline_scheduler.model import Admitted, CapacityType, Gang, Snapshot, SpotRule


def started_surplus(
    *, snapshot: Snapshot, pending: Iterable[Gang], decisions: Decisions
) -> tuple[Gang, ...]:
    """The surplus gangs that this cycle starts: as if they had been pending."""
    placed = {each.uid for each in decisions.placed}
    gangs = (*pending, *(held.gang for held in snapshot.admitted))
    running = {held.gang.uid for held in snapshot.admitted}
    return tuple(
        gang.surplus
        for gang in gangs
        if gang.surplus is not None and gang.surplus.uid in placed - running
    )


def surplus_violations(
    *, snapshot: Snapshot, started: Iterable[Gang], decisions: Decisions
) -> list[str]:
    """Surplus gangs that take places without the gang that they are beside, or on other nodes.

    And pairs that are moved, or answered one by one.
    """
    running = {held.gang.uid: held for held in snapshot.admitted}
    fresh = {each.uid for each in decisions.placed if not each.replaced}
    leaving = {victim.uid for each in decisions.preemptions for victim in each.victims}
    leaving |= {each.uid for each in decisions.evictions}
    grows = {
        each.uid
        for each in decisions.resized
        if len(each.kept) + len(each.added) > len(running[each.uid].assignment)
    }
    more = [*started, *(running[uid].gang for uid in grows if running[uid].gang.surplus_of)]
    violations = [
        f"{gang.key} takes surplus beside a gang that is not whole or leaves"
        for gang in more
        if gang.surplus_of in leaving
        or not (gang.surplus_of in fresh or _is_whole(running.get(gang.surplus_of)))
    ]
    violations += [
        f"the surplus of {held.gang.key} leaves later than its gang, or earlier"
        for held in snapshot.admitted
        if held.gang.surplus_of in running and held.departs != running[held.gang.surplus_of].departs
    ]
    apart = {each.uid for each in (*decisions.moves, *decisions.evictions, *decisions.blocked)}
    apart |= {each.uid for each in (*decisions.preemptions, *decisions.reservations)}
    violations += [
        f"the surplus of {held.gang.key} is answered as if it were a job"
        for held in snapshot.admitted
        if held.gang.surplus_of and held.gang.uid in apart
    ]
    return violations + _wrong_nodes(snapshot=snapshot, started=started, decisions=decisions)


def _is_whole(held: Admitted | None) -> bool:
    return held is not None and not (held.lost or held.leaving or held.giving_up or held.displaced)


def _wrong_nodes(*, snapshot: Snapshot, started: Iterable[Gang], decisions: Decisions) -> list[str]:
    """Surplus that starts on nodes that stay, where queue or job has it on spot nodes."""
    spot = {pool.name for pool in snapshot.pools if pool.capacity is CapacityType.SPOT}
    rules = {queue.name: queue.price_rule.spot for queue in snapshot.queues}
    pool_of = {each.uid: each.pool for each in decisions.placed}
    return [
        f"{gang.key} takes surplus in {pool_of[gang.uid]}, which is no spot pool"
        for gang in started
        if SpotRule.SURPLUS in (gang.price_rule.spot, rules.get(gang.queue))
        and pool_of[gang.uid] not in spot
    ]
