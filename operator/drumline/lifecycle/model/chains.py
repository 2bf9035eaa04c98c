"""Jobs that start after other jobs: which predecessors hold a job back, and until when.

    train  after: [{job: tokenize}]      tokenize runs -> WaitedFor; failed -> Failed; ended -> met

Met predecessors are stored in `status.after`, so a predecessor may be deleted once it has ended,
also by its TTL. A job is eligible from the end of its last predecessor on. Waiting for others does
not count as time in the queue (as in Slurm's priority by age).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from drumline.lifecycle.model.conditions import is_true
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline_api.after import AfterSpec
from drumline_api.conditions import ConditionType
from drumline_scheduler.model import Predecessor, PredecessorState


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """State of a job's predecessors."""

    unmet: tuple[Predecessor, ...] = ()
    """Predecessors that hold the job back."""
    met: tuple[AfterSpec, ...] = ()
    """Predecessors that ended as required and are not in the job's status yet."""
    ended_at: float = 0.0
    """End of the last of `met` (seconds since the epoch)."""


FREE = Standing()
"""Standing of a job that no predecessor holds back."""


def unmet_of(job: Job) -> tuple[AfterSpec, ...]:
    """Return the entries of a job's `after` that its status does not show as met."""
    met = job.status.after or ()
    return tuple(after for after in job.spec.after or () if after not in met)


def standing_of(
    job: Job, *, job_at: Callable[[str], Job | None], circle: tuple[str, ...] = ()
) -> Standing:
    """Return the state of a job's predecessors.

    Args:
        job: the job.
        job_at: returns the job with a key `namespace/name`, or None.
        circle: keys of the jobs that wait for each other, if this job is one of them (`circles`).
    """
    unmet: list[Predecessor] = []
    met: list[AfterSpec] = []
    ended_at = 0.0
    for after in unmet_of(job):
        key = f"{job.namespace}/{after.job}"
        predecessor = job_at(key)
        must_succeed = after.condition == "Succeeded"
        state = _state_of(predecessor, must_succeed=must_succeed, is_circular=key in circle)
        if state is not None:
            is_circular = state is PredecessorState.CIRCULAR
            unmet.append(
                Predecessor(
                    key=key,
                    must_succeed=must_succeed,
                    state=state,
                    circle=circle if is_circular else (),
                )
            )
        elif predecessor is not None and predecessor.status.finished_at is not None:
            met.append(after)
            ended_at = max(ended_at, parse_timestamp(predecessor.status.finished_at))
    return Standing(unmet=tuple(unmet), met=tuple(met), ended_at=ended_at)


def circles(edges: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """Return the jobs that wait for each other, each with a circle: `(a, b, a)` if a is after b.

    If circles share a job, at least one of them is found: those that a depth-first walk closes.
    When that one is broken the next one is found. O(jobs + edges).

    Args:
        edges: for each job the jobs that it waits for, by key.
    """
    # Depth first without recursion, because chains may be longer than Python's stack.
    circle_of: dict[str, tuple[str, ...]] = {}
    done: set[str] = set()
    for start in edges:
        if start in done:
            continue
        path: list[str] = [start]
        position = {start: 0}
        ahead = [iter(edges[start])]
        while ahead:
            # The next edge of the last job on the path.
            successor = next(ahead[-1], None)
            if successor is None:
                ahead.pop()
                done.add(path.pop())
                continue
            # An edge back to the path closes a circle.
            if successor in position and successor not in done:
                circle = (*path[position[successor] :], successor)
                circle_of.update((key, circle) for key in circle if key not in circle_of)
            elif successor in edges and successor not in done:
                position[successor] = len(path)
                path.append(successor)
                ahead.append(iter(edges[successor]))
    return circle_of


def _state_of(
    predecessor: Job | None, *, must_succeed: bool, is_circular: bool
) -> PredecessorState | None:
    """Return why a predecessor holds a job back, or None if it does not."""
    if predecessor is None:
        return PredecessorState.NOT_FOUND
    if predecessor.finished:
        if must_succeed and not is_true(predecessor.status, ConditionType.SUCCEEDED):
            return PredecessorState.FAILED
        return None
    return PredecessorState.CIRCULAR if is_circular else PredecessorState.WAITED_FOR
