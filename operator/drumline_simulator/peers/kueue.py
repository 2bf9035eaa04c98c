"""Implement Kueue's classic admission: quota with borrowing, preemption, whole gangs.

Every cycle tries the first workload of each queue, until no queue has an untried one. Workloads
that need not borrow come first, then by priority and age. A queue continues behind a workload that
does not fit (BestEffortFIFO) or waits for it (StrictFIFO). The first flavor in which a workload
fits is used, borrowing or not. Victims are searched only if no flavor fits.

This model is better than Kueue on purpose. Cycles take no time. All workloads are tried in one
cycle (Kueue tries one per queue). Any number of lost nodes is replaced immediately. Places are
checked for each set of victims. A preemptor keeps its places and quota until its victims have left.
No workload takes them, or is evicted for places that become free anyway. See decision 51.

A cycle therefore has two ledgers of nodes and quota. In `_now`, leaving workloads still hold what
they have. In `_later`, they are gone, and each preemptor has its places.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from drumline_scheduler import (
    Admitted,
    CycleInput,
    Decisions,
    Gang,
    Placed,
    Preemption,
    Snapshot,
    Victim,
    WaitingRule,
)
from drumline_scheduler.decisions import VictimReason
from drumline_simulator.peers.node_room import NodeRoom
from drumline_simulator.peers.quota import KueueQuota
from drumline_simulator.peers.victims import PoolPlaces, find_victims


def decide_as_kueue(cycle: CycleInput) -> Decisions:
    """Decide one cycle. The waiting rule `STRICT` is StrictFIFO. Other policy is ignored."""
    state = _Cycle(cycle.snapshot, strict=cycle.policy.waiting is WaitingRule.STRICT)
    # Repairs go first, because their gangs hold quota already and need only nodes.
    repaired = tuple(state.repairs())
    state.admit(list(cycle.pending))
    return Decisions(placed=(*repaired, *state.placed), preemptions=tuple(state.preemptions))


# One refusal answers for all workloads of a shape, so that a long queue stays cheap.
@dataclass(frozen=True, slots=True)
class _Shape:
    """Workloads of one shape, which have the same answer within a cycle."""

    queue: str
    priority: int
    pods: int
    gpus: int
    pools: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ledger:
    """Free GPUs of each node, and used quota, kept up to date by each decision of the cycle."""

    room: NodeRoom
    quota: KueueQuota

    @classmethod
    def of(cls, snapshot: Snapshot, *, admitted: Sequence[Admitted]) -> _Ledger:
        return cls(
            room=NodeRoom(snapshot.nodes, admitted=admitted),
            quota=KueueQuota(snapshot.queues, admitted=admitted),
        )

    def take(self, gang: Gang, assignment: PoolPlaces, *, times: int = 1) -> None:
        """Charge a workload. `times=-1` gives everything back."""
        self.quota.add(gang.queue, pool=assignment.pool, gpus=times * gang.gpus)
        self.room.take(gang, dict(enumerate(assignment.places)), times=times)

    def holds(self, gang: Gang, assignment: PoolPlaces) -> bool:
        """Return whether a workload has quota and room at these places."""
        return self.quota.fits(
            gang.queue, pool=assignment.pool, gpus=gang.gpus
        ) and self.room.has_room(gang, assignment.places)


class _Cycle:
    """State of one cycle."""

    def __init__(self, snapshot: Snapshot, *, strict: bool) -> None:
        self._running = {held.gang.uid: held for held in snapshot.admitted if not held.leaving}
        self._now = _Ledger.of(snapshot, admitted=snapshot.admitted)
        self._later = _Ledger.of(snapshot, admitted=tuple(self._running.values()))
        # Places of preemptors whose victims are leaving, by uid.
        self._kept: dict[str, PoolPlaces] = {}
        self._strict = strict
        self.placed: list[Placed] = []
        self.preemptions: list[Preemption] = []

    def repairs(self) -> Iterable[Placed]:
        """Return other nodes for lost ones, if all nodes that a gang has lost fit."""
        # Sorted by uid, so that the order of the snapshot does not change the outcome.
        for uid, held in sorted(self._running.items()):
            if not held.lost:
                continue
            lost = sorted(held.lost)
            places = self._now.room.places(held.gang, pool=held.pool, pods=len(lost))
            # A partial repair would not let the gang run, so it is not tried.
            if places is None:
                continue
            new = dict(zip(lost, places, strict=True))
            for ledger in (self._now, self._later):
                ledger.room.take(held.gang, new)
            assignment = tuple(new.get(i, name) for i, name in enumerate(held.assignment))
            yield Placed(
                key=held.gang.key,
                uid=uid,
                pool=held.pool,
                assignment=assignment,
                replaced=tuple(lost),
            )

    def admit(self, pending: Sequence[Gang]) -> None:
        """Admit workloads that fit, and evict for workloads that may preempt."""
        queues = self._now.quota.queues
        # Phase 1: what preemptors wait for. Reservations whose nodes are gone are dropped.
        for gang in sorted(pending, key=_by_age):
            kept = PoolPlaces(pool=gang.nominated_pool, places=gang.nominated)
            if gang.nominated and gang.queue in queues and self._later.holds(gang, kept):
                self._later.take(gang, kept)
                self._kept[gang.uid] = kept
        # Phase 2: one line per queue. Jobs of unknown queues stay pending.
        lines: dict[str, list[Gang]] = {}
        for gang in sorted(pending, key=self._in_queue):
            if gang.queue in queues:
                lines.setdefault(gang.queue, []).append(gang)
        # Phase 3: rounds of the heads. A refusal holds for its shape in all rounds.
        refused: set[_Shape] = set()
        while lines:
            heads = sorted((line[0] for line in lines.values()), key=self._among_heads)
            for gang in heads:
                shape = self._shape(gang)
                admitted = shape not in refused and self._try(gang, pools=shape.pools)
                if not admitted:
                    refused.add(shape)
                line = lines[gang.queue]
                line.pop(0)
                # StrictFIFO: nothing behind a refused head is tried.
                if not line or (self._strict and not admitted):
                    del lines[gang.queue]

    def _try(self, gang: Gang, *, pools: Sequence[str]) -> bool:
        """Admit a workload, or evict for it. Return whether either happened."""
        kept = self._kept.get(gang.uid)
        if kept is not None:
            self._later.take(gang, kept, times=-1)
        for pool in pools:
            assignment = self._places(gang, pool=pool, ledgers=(self._now, self._later))
            if assignment is not None:
                self._place(gang, assignment)
                return True
        if kept is not None:
            self._later.take(gang, kept)
            return False  # its victims are on their way out
        # Enough is leaving already: no other workload is evicted.
        if any(self._places(gang, pool=pool, ledgers=(self._later,)) for pool in pools):
            return False
        # Flavors in their order again: the first one with victims wins.
        for pool in pools:
            eviction = find_victims(
                gang,
                pool=pool,
                quota=self._later.quota,
                room=self._later.room,
                running=list(self._running.values()),
            )
            if eviction is not None:
                self._preempt(gang, *eviction)
                return True
        return False

    def _places(self, gang: Gang, *, pool: str, ledgers: Sequence[_Ledger]) -> PoolPlaces | None:
        """Return places that are free in each ledger, if the quota allows them there."""
        if not all(each.quota.fits(gang.queue, pool=pool, gpus=gang.gpus) for each in ledgers):
            return None
        room, *more_rooms = [each.room for each in ledgers]
        places = room.places(gang, pool=pool, pods=gang.nodes, also_in=more_rooms)
        return None if places is None else PoolPlaces(pool=pool, places=places)

    def _place(self, gang: Gang, assignment: PoolPlaces) -> None:
        for ledger in (self._now, self._later):
            ledger.take(gang, assignment)
        self.placed.append(
            Placed(key=gang.key, uid=gang.uid, pool=assignment.pool, assignment=assignment.places)
        )

    def _preempt(self, gang: Gang, assignment: PoolPlaces, victims: Sequence[Admitted]) -> None:
        self.preemptions.append(
            Preemption(
                key=gang.key,
                uid=gang.uid,
                pool=assignment.pool,
                assignment=assignment.places,
                victims=tuple(_victim(held, queue=gang.queue) for held in victims),
            )
        )
        for held in victims:
            del self._running[held.gang.uid]
            self._later.quota.add(held.gang.queue, pool=held.pool, gpus=-held.gpus)
            self._later.room.take(held.gang, held.survivors, times=-1)
        self._later.take(gang, assignment)

    def _shape(self, gang: Gang) -> _Shape:
        queue = self._now.quota.queues[gang.queue]
        pools = gang.pools or ((gang.pool,) if gang.pool else tuple(sorted(queue.nominal)))
        return _Shape(gang.queue, gang.priority, gang.nodes, gang.per_pod.gpus, pools)

    def _among_heads(self, gang: Gang) -> tuple[bool, bool, int, float, str]:
        first = self._shape(gang).pools[0]
        borrows = self._now.quota.borrows(gang.queue, pool=first, gpus=gang.gpus)
        # Preemptors first, then workloads without borrowing, as in the module's rules.
        return (gang.uid not in self._kept, borrows, *_by_age(gang))

    def _in_queue(self, gang: Gang) -> tuple[bool, int, float, str]:
        return (gang.uid not in self._kept, *_by_age(gang))


def _by_age(gang: Gang) -> tuple[int, float, str]:
    return (-gang.priority, gang.queued_at, gang.uid)


def _victim(held: Admitted, *, queue: str) -> Victim:
    own = held.gang.queue == queue
    return Victim(
        # Victims of the own queue have a lower priority. Others have borrowed.
        key=held.gang.key,
        uid=held.gang.uid,
        gpus=held.gpus,
        gpu_seconds_lost=held.gpu_seconds_at_risk,
        why=VictimReason.LOWER_PRIORITY if own else VictimReason.BORROWED,
    )
