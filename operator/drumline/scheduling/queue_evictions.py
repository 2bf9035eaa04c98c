"""Running gangs that have to leave because their own queue says so, for nobody else's sake.

A queue that is drained gives up everything that it runs: each of its gangs is asked to save, gives
its slots up and waits at its old position, until its queue is open again. In the cycle that says
so, such a gang counts as leaving already: nobody is preempted for what it is about to free, it is
neither repaired nor grown, and no victim of anybody. If its queue has changed its mind before it
has left, it stays where it is.

Example: A and B of queue Q run, C of Q waits. Q is drained: A and B depart, C is rejected, as is A
once it has left. Q is open again while B still saves: B stays; A and C are placed as ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from drumline.scheduling.decisions import QueueEviction, QueueEvictionReason
from drumline.scheduling.model import Admitted, Queue, Snapshot


def queue_evictions(snapshot: Snapshot) -> tuple[QueueEviction, ...]:
    """The gangs that are to leave from now on. O(queues + admitted where a queue is closed)."""
    closed = {queue.name: queue for queue in snapshot.queues if queue.drained}
    if not closed:
        return ()
    return tuple(
        _eviction(held, queue=closed[held.gang.queue])
        for held in sorted(snapshot.admitted, key=_key)
        if held.gang.queue in closed and not (held.leaving or held.is_residual)
    )


def recalled(snapshot: Snapshot) -> tuple[str, ...]:
    """Uids of gangs that depart and need not any more."""
    closed = {queue.name for queue in snapshot.queues if queue.drained}
    return tuple(
        sorted(
            held.gang.uid
            for held in snapshot.admitted
            if held.departs and held.gang.queue not in closed
        )
    )


def with_evictions(
    snapshot: Snapshot, *, leaving: Iterable[QueueEviction], staying: Iterable[str]
) -> Snapshot:
    """The snapshot as if these gangs had been told so; the same object if there are none."""
    leave, stay = {eviction.uid for eviction in leaving}, set(staying)
    if not leave and not stay:
        return snapshot

    def as_told(held: Admitted) -> Admitted:
        if held.gang.uid in leave:
            return replace(held, leaving=True, departs=True)
        if held.gang.uid in stay and held.departs:
            return replace(held, leaving=False, departs=False)
        return held

    return replace(snapshot, admitted=tuple(map(as_told, snapshot.admitted)))


def _eviction(held: Admitted, *, queue: Queue) -> QueueEviction:
    return QueueEviction(
        key=held.gang.key,
        uid=held.gang.uid,
        queue=queue.name,
        gpus=held.gpus,
        gpu_seconds_lost=held.gpu_seconds_at_risk,
        why=QueueEvictionReason.QUEUE_DRAINED,
        message=f"queue {queue.name} is drained: its jobs save and wait until its stopPolicy is"
        " None",
    )


def _key(held: Admitted) -> str:
    return held.gang.key
