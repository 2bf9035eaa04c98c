"""Jobs that start after other jobs: which of these still hold a job back, and since when none does.

    train  after: [{job: tokenize}]      tokenize runs -> WaitedFor; failed -> Failed; ended -> met

What was met is kept in `status.after`, so a predecessor may be deleted once it has ended, by its
TTL too. A job is eligible from the end of its last predecessor on: to wait for others is no time in
the queue (Slurm's priority by age counts from then on too).
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
    """How far a job's predecessors are."""

    unmet: tuple[Predecessor, ...] = ()
    """Those that hold it back."""
    met: tuple[AfterSpec, ...] = ()
    """Those that have ended as they should, and of which its status does not say so yet."""
    ended_at: float = 0.0
    """When the last of `met` ended (seconds since the epoch)."""


FREE = Standing()
"""Of a job that nothing holds back."""


def unmet_of(job: Job) -> tuple[AfterSpec, ...]:
    """What of its `after` the job's status does not show as met."""
    met = job.status.after or ()
    return tuple(after for after in job.spec.after or () if after not in met)


def standing_of(
    job: Job, *, job_at: Callable[[str], Job | None], circle: tuple[str, ...] = ()
) -> Standing:
    """How far the predecessors of a job are.

    Args:
        job: the job.
        job_at: the job with a key `namespace/name`; None: there is none.
        circle: keys of the jobs that wait for each other, if this job is among them (`circles`).
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
    """Jobs that wait for each other, each with such a circle: `(a, b, a)` where a is after b.

    Of circles that share a job, those are found that a walk depth first closes, at least one; when
    it is broken the next is. O(jobs + edges).

    Args:
        edges: for each job the jobs that it waits for, by key.
    """
    circle_of: dict[str, tuple[str, ...]] = {}
    done: set[str] = set()
    for start in edges:
        if start in done:
            continue
        path: list[str] = [start]
        position = {start: 0}
        ahead = [iter(edges[start])]
        while ahead:
            successor = next(ahead[-1], None)
            if successor is None:
                ahead.pop()
                done.add(path.pop())
                continue
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
    """Why it holds a job back; None: it does not any more."""
    if predecessor is None:
        return PredecessorState.NOT_FOUND
    if predecessor.finished:
        if must_succeed and not is_true(predecessor.status, ConditionType.SUCCEEDED):
            return PredecessorState.FAILED
        return None
    return PredecessorState.CIRCULAR if is_circular else PredecessorState.WAITED_FOR
