"""Implement Kueue's classic admission: quota with borrowing, preemption, whole gangs.

Every cycle tries the first workload of each queue, until no queue has an untried one. Workloads
that need not borrow come first, then by priority and age. A queue continues behind a workload that
does not fit (BestEffortFIFO) or waits for it (StrictFIFO). The first flavor in which a workload
fits is used, borrowing or not. Victims are searched only if no flavor fits.

This model is better than Kueue on purpose. Cycles take no time. All workloads are tried in one
cycle (Kueue tries one per queue). Any number of lost nodes is replaced immediately. Places are
checked for each set of victims, and a preemptor is first in line for the GPUs of its victims. See
decision 51.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

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


class _Cycle:
    """State of one cycle."""

    def __init__(self, snapshot: Snapshot, *, strict: bool) -> None:
        self._admitted = {held.gang.uid: held for held in snapshot.admitted}
        self._quota = KueueQuota(snapshot.queues, admitted=snapshot.admitted)
        # Free GPUs per node, kept up to date by each decision of the cycle.
        self._room = NodeRoom(snapshot.nodes, admitted=snapshot.admitted)
        self._strict = strict
        # One flag for all: Kueue retries a preemptor only when a victim is gone.
        self._leaving = any(held.leaving for held in snapshot.admitted)
        self.placed: list[Placed] = []
        self.preemptions: list[Preemption] = []

    def repairs(self) -> Iterable[Placed]:
        """Return other nodes for lost ones, if all nodes that a gang has lost fit."""
        # Sorted by uid, so that the order of the snapshot does not change the outcome.
        for uid, held in sorted(self._admitted.items()):
            if not held.lost or held.leaving:
                continue
            lost = sorted(held.lost)
            places = self._room.places(held.gang, pool=held.pool, pods=len(lost))
            # A partial repair would not let the gang run, so it is not tried.
            if places is None:
                continue
            new = dict(zip(lost, places, strict=True))
            self._room.take(held.gang, new)
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
        # Phase 1: one line per queue. Jobs of unknown queues stay pending.
        lines: dict[str, list[Gang]] = {}
        for gang in sorted(pending, key=_in_queue):
            if gang.queue in self._quota.queues:
                lines.setdefault(gang.queue, []).append(gang)
        # Phase 2: rounds of the heads. A refusal holds for its shape in all rounds.
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
        for pool in pools:
            if not self._quota.fits(gang.queue, pool=pool, gpus=gang.gpus):
                continue
            places = self._room.places(gang, pool=pool, pods=gang.nodes)
            if places is not None:
                self._place(gang, PoolPlaces(pool=pool, places=places))
                return True
        if gang.nominated and self._leaving:
            return False  # its victims are on their way out
        # Flavors in their order again: the first one with victims wins.
        for pool in pools:
            eviction = find_victims(
                gang,
                pool=pool,
                quota=self._quota,
                room=self._room,
                running=list(self._admitted.values()),
            )
            if eviction is not None:
                self._preempt(gang, *eviction)
                return True
        return False

    def _place(self, gang: Gang, assignment: PoolPlaces) -> None:
        self._quota.add(gang.queue, pool=assignment.pool, gpus=gang.gpus)
        self._room.take(gang, dict(enumerate(assignment.places)))
        self.placed.append(
            Placed(key=gang.key, uid=gang.uid, pool=assignment.pool, assignment=assignment.places)
        )

    def _preempt(self, gang: Gang, assignment: PoolPlaces, victims: Sequence[Admitted]) -> None:
        for held in victims:
            self._admitted[held.gang.uid] = replace(held, leaving=True)
        self.preemptions.append(
            Preemption(
                key=gang.key,
                uid=gang.uid,
                pool=assignment.pool,
                assignment=assignment.places,
                victims=tuple(_victim(held, queue=gang.queue) for held in victims),
            )
        )
        # Until they are gone they hold their quota and places, and nobody else gets these either.
        for held in victims:
            # A negative amount frees the victims' share for the accounting of this cycle only.
            self._quota.add(held.gang.queue, pool=held.pool, gpus=-held.gpus)
            self._room.take(held.gang, held.survivors, times=-1)
        self._quota.add(gang.queue, pool=assignment.pool, gpus=gang.gpus)
        self._room.take(gang, dict(enumerate(assignment.places)))

    def _shape(self, gang: Gang) -> _Shape:
        queue = self._quota.queues[gang.queue]
        pools = gang.pools or ((gang.pool,) if gang.pool else tuple(sorted(queue.nominal)))
        return _Shape(gang.queue, gang.priority, gang.nodes, gang.per_pod.gpus, pools)

    def _among_heads(self, gang: Gang) -> tuple[bool, bool, int, float, str]:
        first = self._shape(gang).pools[0]
        borrows = self._quota.borrows(gang.queue, pool=first, gpus=gang.gpus)
        # Preemptors first, then workloads without borrowing, as in the module's rules.
        return (not gang.nominated, borrows, -gang.priority, gang.queued_at, gang.uid)


def _in_queue(gang: Gang) -> tuple[bool, int, float, str]:
    return (not gang.nominated, -gang.priority, gang.queued_at, gang.uid)


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
