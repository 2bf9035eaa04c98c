"""Demands: nodes that were requested from autoscalers, until they come or are withdrawn.

An autoscaler answers node by node and promises nothing, so a demand is kept as one, for one gang:

    asked ──► the gang starts: the demand is hidden ──► over when its pods exist
      │
      ├─────► the gang would not start with it (quota, deleted, suspended) ──► over
      ├─────► a running gang now lacks other pods ──► over; the next cycle requests nodes for these
      └─────► refused, or timeout ──► over; this zone grows as far again only after a pause

While a demand is open, nodes that come are kept for the gang, the first in line first
(`node_needs`). So two gangs never hold halves. After its end nothing is requested for it. Nodes
that came are free for all gangs, and the autoscaler removes them when they are idle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from drumline_scheduler.decisions import NeedsNodes
from drumline_scheduler.model import AskedNodes, NodeOffer, Snapshot
from drumline_scheduler.resources import NOTHING, Resources

FIRST_PAUSE_SECONDS: Final = 60.0
LONGEST_PAUSE_SECONDS: Final = 3600.0
_DOUBLINGS: Final = 10
"""Enough doublings to reach the longest pause."""
STARTED_SECONDS: Final = 15.0
"""Time within which a gang that starts has bound all its pods. After it the demand ends in any
case: Karpenter leaves nodes alone for 20 s after it last nominated them."""


NO_MESSAGES: Final[Mapping[str, str]] = {}


class DemandEnd(StrEnum):
    """Why a demand has ended."""

    STARTED = "Started"
    TIMED_OUT = "TimedOut"
    REFUSED = "Refused"
    NOT_NEEDED = "NotNeeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDemand:
    """The nodes that are requested from an autoscaler for one gang."""

    key: str
    uid: str
    pool: str
    zone: str
    nodes: int
    """Number of nodes that were missing at the time of the request."""
    pool_nodes: int
    """Number of nodes in the pool with the requested ones."""
    shares: tuple[Resources, ...]
    """Resources that the gang takes of each node, existing nodes included (`NeedsNodes.shares`)."""
    asked_at: float
    started_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBackoff:
    """A pool did not reach `pool_nodes`. Until `until`, only fewer nodes may be requested."""

    pool: str
    zone: str
    pool_nodes: int
    until: float
    timeouts: int
    why: str = ""
    """Last message of the autoscaler about these nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDemands:
    """The open demands, and the pools that recently did not grow."""

    open: tuple[NodeDemand, ...] = ()
    backoffs: tuple[NodeBackoff, ...] = ()

    @property
    def asked(self) -> tuple[AskedNodes, ...]:
        """The open demands as the scheduler reads them."""
        return tuple(
            AskedNodes(uid=each.uid, pool=each.pool, zone=each.zone, nodes=each.nodes)
            for each in self.open
            if each.started_at is None
        )

    def shown_to(self, snapshot: Snapshot, *, offers: Iterable[NodeOffer], now: float) -> Snapshot:
        """Return the snapshot with the nodes that can be requested, and those that were.

        Args:
            snapshot: the real cluster.
            offers: nodes that pools can add.
            now: Unix time in seconds.
        """
        return replace(snapshot, offers=self.within(offers, now=now), asked=self.asked)

    def within(self, offers: Iterable[NodeOffer], *, now: float) -> tuple[NodeOffer, ...]:
        """Return the offers, each with the number of nodes that may be requested now."""
        closed = {
            (backoff.pool, backoff.zone): backoff
            for backoff in self.backoffs
            if now < backoff.until
        }
        return tuple(_limited(offer, by=closed.get((offer.pool, offer.zone))) for offer in offers)

    def next_change(self, timeouts: Mapping[str, float], *, now: float) -> float | None:
        """Return the next time at which a timeout or a backoff ends; None if there is none."""
        ends = [each.asked_at + timeouts.get(each.pool, 0.0) for each in self.open]
        ends += [each.started_at + STARTED_SECONDS for each in self.open if each.started_at]
        ends += [backoff.until for backoff in self.backoffs if now < backoff.until]
        return min(ends, default=None)


def _limited(offer: NodeOffer, *, by: NodeBackoff | None) -> NodeOffer:
    if by is None:
        return replace(offer, new_limit=None)
    return replace(offer, new_limit=by.pool_nodes - 1, limited_until=by.until, limited_why=by.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandsAfter:
    """The demands after a cycle, and the earlier demands that have ended."""

    demands: NodeDemands
    ended: tuple[tuple[NodeDemand, DemandEnd], ...] = ()


def demands_after(
    before: NodeDemands,
    *,
    needs: Iterable[NeedsNodes],
    started: Collection[str],
    held_back: Collection[str] = (),
    refused: Collection[str] = (),
    running: Collection[str] = (),
    messages: Mapping[str, str] = NO_MESSAGES,
    bound: Collection[str],
    timeouts: Mapping[str, float],
    now: float,
) -> DemandsAfter:
    """Return the demands after a cycle.

    Args:
        before: demands before the cycle.
        needs: nodes that gangs need, as the cycle decided.
        started: uids of the gangs that it started or repaired.
        held_back: uids of gangs that it would have started, but whose nodes are not guarded yet.
        refused: uids of gangs that get no nodes, according to the autoscaler or the API server.
        running: uids of the gangs that hold places, whole or not.
        messages: last message of the autoscaler about the nodes of a gang, by uid.
        bound: uids of gangs all of whose pods are there.
        timeouts: seconds after which a demand is withdrawn, by pool.
        now: seconds on the clock of `asked_at`.
    """
    needed = {need.uid: need for need in needs}
    kept: list[NodeDemand] = []
    ended: list[tuple[NodeDemand, DemandEnd]] = []
    # 1. Keep or end each open demand.
    for demand in before.open:
        if demand.started_at is None and demand.uid in started:
            demand = replace(demand, started_at=now)  # noqa: PLW2901 - the same demand, later
        need = needed.pop(demand.uid, None)
        end = _end(demand, need=need, refused=refused, bound=bound, timeouts=timeouts, now=now)
        if end is None and demand.uid in running and need is not None and _differs(need, demand):
            end = DemandEnd.NOT_NEEDED
        if end is None or (demand.started_at is None and demand.uid in held_back):
            kept.append(demand)
        else:
            ended.append((demand, end))
    # 2. Open a demand for every other need, and back off in pools where a demand failed.
    asked = (
        NodeDemand(
            key=need.key,
            uid=need.uid,
            pool=need.pool,
            zone=need.zone,
            nodes=need.nodes,
            pool_nodes=need.pool_nodes,
            shares=need.shares,
            asked_at=now,
        )
        for need in needed.values()
    )
    return DemandsAfter(
        demands=NodeDemands(
            open=(*kept, *asked),
            backoffs=_backoffs(before.backoffs, ended=ended, messages=messages, now=now),
        ),
        ended=tuple(ended),
    )


def _differs(need: NeedsNodes, demand: NodeDemand) -> bool:
    """Return whether a gang lacks other pods than its demand shows to the autoscaler."""
    # A new leader does not know the shares of an earlier one.
    if NOTHING in demand.shares:
        return False
    return sum(need.shares, start=NOTHING) != sum(demand.shares, start=NOTHING)


def _end(
    demand: NodeDemand,
    *,
    need: NeedsNodes | None,
    refused: Collection[str],
    bound: Collection[str],
    timeouts: Mapping[str, float],
    now: float,
) -> DemandEnd | None:
    """Return why a demand ends; None if it stays open."""
    if demand.started_at is not None:
        is_over = demand.uid in bound or now >= demand.started_at + STARTED_SECONDS
        return DemandEnd.STARTED if is_over else None
    if need is None or (need.pool, need.zone) != (demand.pool, demand.zone):
        return DemandEnd.NOT_NEEDED
    if demand.uid in refused:
        return DemandEnd.REFUSED
    is_late = now >= demand.asked_at + timeouts.get(demand.pool, 0.0)
    return DemandEnd.TIMED_OUT if is_late else None


def _backoffs(
    before: Iterable[NodeBackoff],
    *,
    ended: Iterable[tuple[NodeDemand, DemandEnd]],
    messages: Mapping[str, str],
    now: float,
) -> tuple[NodeBackoff, ...]:
    """Return one backoff for each pool and zone. It ends for good when a gang has started there."""
    backoffs = {(each.pool, each.zone): each for each in before}
    known = dict(backoffs)
    for demand, end in ended:
        place = (demand.pool, demand.zone)
        if end is DemandEnd.STARTED:
            backoffs.pop(place, None)
        if end not in (DemandEnd.TIMED_OUT, DemandEnd.REFUSED):
            continue
        timeouts = known[place].timeouts + 1 if place in known else 1
        doublings = min(timeouts - 1, _DOUBLINGS)  # after weeks of timeouts 2.0 ** n overflows
        pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0**doublings)
        current = backoffs.get(place)
        is_open = current is not None and now < current.until
        # The smallest pool size of several failed demands counts: not even that many nodes came.
        goals = [demand.pool_nodes, *([current.pool_nodes] if current and is_open else [])]
        backoffs[place] = NodeBackoff(
            pool=demand.pool,
            zone=demand.zone,
            pool_nodes=min(goals),
            until=now + pause,
            timeouts=timeouts,
            why=messages.get(demand.uid, ""),
        )
    return tuple(backoffs.values())
