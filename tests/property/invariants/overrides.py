"""Check quotas that move for overrides: only unused quota of the cohort, to the job's queue."""

from __future__ import annotations

from collections import Counter

from drumline_scheduler.model import Queue, Snapshot


def override_violations(*, written: Snapshot, applied: Snapshot, now: float) -> list[str]:
    """Quotas that changed without an override in effect, by too much, or between cohorts."""
    violations: list[str] = []
    before = {queue.name: queue for queue in written.queues}
    granted = {
        (queue.name, each.job)
        for queue in written.queues
        for each in queue.overrides
        if now < each.until
    }
    used = Counter[tuple[str, str]]()
    for held in written.admitted:
        if not held.leaving:
            gone = (held.gang.request_of(position).gpus for position in held.giving_up)
            used[held.pool, held.gang.queue] += held.gpus - sum(gone)
    sums = Counter[tuple[str, str]]()
    for queue in applied.queues:
        for pool, quota in queue.nominal.items():
            more = quota - before[queue.name].nominal.get(pool, 0)
            sums[_top(queue, before), pool] += more
            here = f"{queue.name} has {more:+} GPUs of {pool}"
            if more > 0 and not any(name == queue.name for name, _ in granted):
                violations.append(f"{here} without an override")
            if more < 0 and quota < used[pool, queue.name]:
                violations.append(f"{here} of what it uses")
    violations += [
        f"{root} has {more:+} GPUs of {pool}" for (root, pool), more in sums.items() if more
    ]
    return violations


def _top(queue: Queue, queues: dict[str, Queue]) -> str:
    seen = [queue.name]
    while queue.parent in queues and queue.parent not in seen:
        queue = queues[queue.parent]
        seen.append(queue.name)
    return queue.name
