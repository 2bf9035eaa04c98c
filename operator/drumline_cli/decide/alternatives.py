"""Compute the alternatives of a pending job with their prices: wait, shrink, preempt, buy.

Only the expected start is an estimate. For all other alternatives, the scheduler decides about the
job alone. For shrink and buy, it uses the cluster after this cycle. For preempt, it uses the
cluster of now and the highest priority that the queue allows. So a listed alternative works when
the user chooses it, unless the cluster has changed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil
from typing import Final

import msgspec

from drumline_api.money import HOUR_SECONDS, cost, exact_text
from drumline_scheduler.autoscaling.grown_cluster import GrownCluster, bare_cycle, settled
from drumline_scheduler.cycle import decide
from drumline_scheduler.cycle_cache import CycleCache
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.decisions import NEVER_FITS, BlockReason, Decisions, Placed
from drumline_scheduler.faults import fault_about
from drumline_scheduler.forecast.expected_starts import ExpectedStart
from drumline_scheduler.forecast.isolation import OnFault, ignored
from drumline_scheduler.model import Gang, NodeOffer, Pool, Queue, Snapshot
from drumline_scheduler.offered_nodes import OfferedNodes
from drumline_scheduler.queueing.line_order import line_of
from drumline_scheduler.quota.pool_prices import accepts, turn_of
from drumline_scheduler.quota.pool_selection import requested_pools
from drumline_scheduler.quota.queue_access import HIGHEST_PRIORITY

# Each job costs several cycles, so the bound keeps the command fast.
MOST_JOBS: Final = 8
"""Number of jobs at the front of the queue whose alternatives are computed."""
# Other reasons, such as an invalid spec, cannot be solved by money or size.
_HAS_ALTERNATIVES: Final = NEVER_FITS | frozenset(
    {
        BlockReason.QUOTA_EXHAUSTED,
        BlockReason.EXCEEDS_QUOTA,
        BlockReason.USER_LIMIT,
        BlockReason.INSUFFICIENT_GPUS,
        BlockReason.INSUFFICIENT_RESOURCES,
        BlockReason.TOPOLOGY_DOES_NOT_FIT,
        BlockReason.NODES_UNAVAILABLE,
        BlockReason.BEHIND_HIGHER_PRIORITY,
        BlockReason.WOULD_DELAY_RESERVATION,
        BlockReason.WAITING_FOR_NODES,
    }
)


class AlternativeKind(StrEnum):
    """Alternative of a pending job."""

    WAIT = "Wait"
    SHRINK = "Shrink"
    """The job requests fewer pods and starts now."""
    PREEMPT = "Preempt"
    """The job gets the highest priority of its queue. Other jobs leave, or wait behind it."""
    BUY = "Buy"
    """A pool gets more nodes."""


class Alternative(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An alternative of a waiting job, with its price.

    Attributes:
        kind: kind of the alternative.
        pool: pool in which the job would run.
        pods: number of pods.
        gpus: GPUs of these pods, or parts in a pool with partitions.
        starts_at: Wait: expected start (seconds since the epoch).
        nodes: Buy: number of new nodes.
        cost_per_hour: price of the GPUs per hour, as a decimal. Buy: of all GPUs of the new nodes.
            Empty: no price is known.
        victims: Preempt: jobs that leave or shrink.
        gpu_seconds_lost: GPU-seconds that the victims lose: work since the last checkpoint, and a
            restart.
        cost_once: price of `gpu_seconds_lost`. Empty: no price is known.
        parts_per_gpu: parts of a GPU in a pool with partitions, otherwise 1.
    """

    kind: AlternativeKind
    pool: str
    pods: int
    gpus: int
    starts_at: float | None = None
    nodes: int = 0
    cost_per_hour: str = ""
    victims: tuple[str, ...] = ()
    gpu_seconds_lost: float = 0.0
    parts_per_gpu: int = 1
    cost_once: str = ""


def alternatives(
    cycle: CycleInput,
    *,
    decisions: Decisions,
    starts: Mapping[str, ExpectedStart],
    on_fault: OnFault = ignored,
) -> Mapping[str, tuple[Alternative, ...]]:
    """Return alternatives by uid for the first pending jobs, or none if no pool has a price.

    A job on which this raises has no alternatives.

    Args:
        cycle: the arguments of this cycle.
        decisions: decisions of this cycle.
        starts: forecasts, by uid.
        on_fault: takes each exception on one job.
    """
    snapshot = cycle.snapshot
    # Without prices there is nothing to compare, so the cycles are saved.
    if all(pool.price is None for pool in snapshot.pools):
        return {}
    gangs = {gang.uid: gang for gang in cycle.pending}
    world = _World(
        cycle=cycle,
        # Shrinking and buying start from the cluster after this cycle. Places of other jobs are
        # taken.
        after=settled(snapshot, gangs=gangs, decisions=decisions),
        decisions=decisions,
        pools={pool.name: pool for pool in snapshot.pools},
        queues={queue.name: queue for queue in snapshot.queues},
        caches=(CycleCache(), CycleCache()),
    )
    # Phase 1: select pending jobs whose reason has an alternative.
    waiting = [
        gangs[blocked.uid]
        for blocked in decisions.blocked
        if blocked.reason in _HAS_ALTERNATIVES and blocked.uid in gangs
    ]
    # Phase 2: sort by the order of the line, since the first jobs matter most.
    line = line_of(gangs.values(), order=decisions.order, considered=decisions.considered)
    rank = {gang.uid: position for position, gang in enumerate(line)}
    # A job in a group waits for its partners. Alternatives of one job would mislead.
    waiting = [gang for gang in waiting if not gang.group and gang.queue in world.queues]
    waiting.sort(key=lambda gang: rank.get(gang.uid, len(rank)))
    by_job: dict[str, tuple[Alternative, ...]] = {}
    for gang in waiting[:MOST_JOBS]:
        try:
            by_job[gang.uid] = tuple(world.of(gang, start=starts.get(gang.uid)))
        except Exception as error:  # noqa: BLE001 - the other jobs keep their alternatives
            on_fault(fault_about(gang.key, uid=gang.uid, stage="alternatives", error=error))
    return by_job


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """The cluster before and after the cycle, and how to ask about it."""

    cycle: CycleInput
    after: Snapshot
    decisions: Decisions
    pools: Mapping[str, Pool]
    queues: Mapping[str, Queue]
    caches: tuple[CycleCache, CycleCache]
    """Caches of cycles on the cluster before and after this one."""

    def of(self, gang: Gang, *, start: ExpectedStart | None) -> Iterator[Alternative]:
        """Return the alternatives of one gang."""
        # Nominated nodes belong to an earlier decision. The question starts without them.
        gang = replace(gang, nominated=(), nominated_pool="", retry_at=0.0)
        queue = self.queues[gang.queue]
        names = requested_pools(gang) or tuple(sorted(queue.nominal))
        # A pool qualifies if it exists, has quota in the queue, and fits the gang.
        open_pools = [
            self.pools[name]
            for name in names
            if name in self.pools
            and name in queue.nominal
            and accepts(self.pools[name], gang=gang, queue=queue)
        ]
        if not requested_pools(gang):
            # Without a request, pools are tried in the order that the scheduler would use.
            open_pools.sort(key=lambda pool: turn_of(pool, gang=gang, queue=queue))
        if open_pools and start is not None and start.p50_at is not None:
            yield self._wait(gang, pool=open_pools[0].name, starts_at=start.p50_at)
        # Cheap alternatives come first. Buying comes last.
        for other in (self._shrink(gang), self._preempt(gang, queue=queue)):
            if other is not None:
                yield other
        for pool in open_pools:
            bought = self._buy(gang, pool=pool)
            if bought is not None:
                yield bought

    def _wait(self, gang: Gang, *, pool: str, starts_at: float) -> Alternative:
        """Describe waiting: in the pool with reserved or requested nodes, otherwise in `pool`."""
        known = (*self.decisions.reservations, *self.decisions.needs_nodes)
        # The decision names the pool if places are reserved or nodes are requested.
        pool = next((each.pool for each in known if each.uid == gang.uid), pool)
        return self._alternative(
            AlternativeKind.WAIT, gang, pool=pool, size=gang.nodes, starts_at=starts_at
        )

    def _shrink(self, gang: Gang) -> Alternative | None:
        """Return the most pods below its smallest size with which it would start now."""
        # Sizes must be multiples of a slice, because a slice cannot be split.
        unit = gang.slices[0].pods if gang.slices else 1
        sizes = range(unit, gang.legal_sizes[0], unit)
        # Binary search: assume that a gang which fits also fits with fewer pods.
        fits = bisect_right(sizes, 0, key=lambda size: 0 if self._placed(gang, size) else 1)
        placed = self._placed(gang, sizes[fits - 1]) if fits else None
        if placed is None:
            return None
        size = len(placed.assignment) - gang.extras
        return self._alternative(AlternativeKind.SHRINK, gang, pool=placed.pool, size=size)

    def _placed(self, gang: Gang, size: int) -> Placed | None:
        smaller = replace(gang, nodes=size, sizes=())
        decisions = self._decide(bare_cycle(self.after, (smaller,), now=self.cycle.now))
        return next(iter(decisions.placed), None)

    # This gang is decided alone, with the highest priority that its queue allows.
    def _preempt(self, gang: Gang, *, queue: Queue) -> Alternative | None:
        """Decide with the highest priority of the queue, as if no other gang waited."""
        top = HIGHEST_PRIORITY if queue.max_priority is None else queue.max_priority
        if gang.priority >= top:
            return None
        first = replace(gang, priority=top)
        # Growth is excluded, because buying is an alternative of its own.
        snapshot = replace(self.cycle.snapshot, offers=(), asked=())
        decisions = decide(
            replace(self.cycle, snapshot=snapshot, pending=(first,)), cache=self.caches[0]
        )
        ways = (*decisions.placed, *decisions.preemptions)
        way = next((each for each in ways if each.uid == gang.uid), None)
        if way is None:
            return None
        victims = () if isinstance(way, Placed) else way.victims
        pool = self.pools[way.pool]
        gpus = pool.in_gpus(sum(victim.gpus for victim in victims))
        # Each victim also repeats its start, which costs GPU time.
        restarts = float(gpus) * self.cycle.policy.restart_seconds
        lost = sum(victim.gpu_seconds_lost for victim in victims) + restarts
        size = len(way.assignment) - gang.extras
        return self._alternative(
            AlternativeKind.PREEMPT,
            gang,
            pool=way.pool,
            size=size,
            victims=tuple(victim.key for victim in victims),
            gpu_seconds_lost=lost,
            cost_once=""
            # If no job is evicted, nothing is lost, even if the pool has a price.
            if pool.price is None or not victims
            else exact_text(cost(gpu_seconds=ceil(lost), price=pool.price)),
        )

    def _buy(self, gang: Gang, *, pool: Pool) -> Alternative | None:
        """Return the fewest nodes with which it would start, in the first possible zone.

        What other jobs ask for counts against the pool's limit.
        """
        there = sum(node.pool == pool.name for node in self.cycle.snapshot.nodes)
        needs = self.decisions.needs_nodes
        asked = sum(each.nodes for each in needs if each.uid != gang.uid and each.pool == pool.name)
        for offer in self.cycle.snapshot.offers:
            # Requests of other jobs use the same limit of the pool.
            most = min(gang.nodes + gang.extras, offer.pool_limit - there - asked)
            if offer.pool == pool.name and most > 0:
                bought = self._bought(gang, offer=offer, most=most)
                if bought is not None:
                    return bought
        return None

    def _bought(self, gang: Gang, *, offer: NodeOffer, most: int) -> Alternative | None:
        world = GrownCluster(
            self.after, now=self.cycle.now, decide=self._decide, nodes=OfferedNodes()
        )
        start = world.start(gang, offer=offer, most=most)
        # A start without new nodes is the alternative WAIT.
        if start is None or not start.need.nodes:
            return None
        nodes = start.need.nodes
        bought = nodes * offer.node.allocatable.gpus
        return msgspec.structs.replace(
            self._alternative(
                AlternativeKind.BUY,
                gang,
                pool=offer.pool,
                size=len(start.placed.assignment) - gang.extras,
                nodes=nodes,
            ),
            # All GPUs of bought nodes are paid, even those that the gang leaves idle.
            cost_per_hour=_an_hour(bought, self.pools[offer.pool]),
        )

    def _alternative(
        self, kind: AlternativeKind, gang: Gang, *, pool: str, size: int, **more: object
    ) -> Alternative:
        gpus = gang.gpus_at(size)
        plain = Alternative(
            kind=kind,
            pool=pool,
            pods=gang.extras + size,
            gpus=gpus,
            cost_per_hour=_an_hour(gpus, self.pools[pool]),
            parts_per_gpu=self.pools[pool].parts_per_gpu,
        )
        return msgspec.structs.replace(plain, **more)

    def _decide(self, cycle: CycleInput) -> Decisions:
        # Cycles after this one share a cache, because their cluster is the same.
        return decide(cycle, cache=self.caches[1])


def _an_hour(amount: int, pool: Pool) -> str:
    """Return the hourly cost of GPUs of a pool, or of partitions if the pool counts these."""
    # An empty text means that no price is known. Zero would look free.
    if pool.price is None:
        return ""
    return exact_text(cost(gpu_seconds=pool.in_gpus(amount) * HOUR_SECONDS, price=pool.price))
