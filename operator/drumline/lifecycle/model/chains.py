"""Jobs that start after other jobs: which predecessors hold a job back, and until when.

    train  after: [{job: tokenize}]      tokenize runs -> WaitedFor; failed -> Failed; ended -> met

Met predecessors are stored in `status.after`, so a predecessor may be deleted once it has ended,
also by its TTL. A job is eligible from the end of its last predecessor on. Waiting for others does
not count as time in the queue (as in Slurm's priority by age).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

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
MOST_NAMED: Final = 8
"""Jobs of a circle that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    """Jobs that wait for each other."""

    keys: tuple[str, ...]
    """One circle of these jobs, such as `(a, b, a)` if a starts after b. A long one is cut."""
    members: frozenset[str]
    """Keys of all jobs that wait for each other."""


def unmet_of(job: Job) -> tuple[AfterSpec, ...]:
    """Return the entries of a job's `after` that its status does not show as met."""
    met = job.status.after or ()
    return tuple(after for after in job.spec.after or () if after not in met)


def standing_of(
    job: Job, *, job_at: Callable[[str], Job | None], circle: Circle | None = None
) -> Standing:
    """Return the state of a job's predecessors.

    Args:
        job: the job.
        job_at: returns the job with a key `namespace/name`, or None.
        circle: the jobs that wait for each other, if this job is one of them (`circles`).
    """
    unmet: list[Predecessor] = []
    met: list[AfterSpec] = []
    ended_at = 0.0
    for after in unmet_of(job):
        key = f"{job.namespace}/{after.job}"
        predecessor = job_at(key)
        must_succeed = after.condition == "Succeeded"
        around = circle.keys if circle is not None and key in circle.members else ()
        state = _state_of(predecessor, must_succeed=must_succeed, is_circular=bool(around))
        if state is not None:
            named = around if state is PredecessorState.CIRCULAR else ()
            unmet.append(Predecessor(key=key, must_succeed=must_succeed, state=state, circle=named))
        elif predecessor is not None and predecessor.status.finished_at is not None:
            met.append(after)
            ended_at = max(ended_at, parse_timestamp(predecessor.status.finished_at))
    return Standing(unmet=tuple(unmet), met=tuple(met), ended_at=ended_at)


def circles(edges: Mapping[str, Collection[str]]) -> list[Circle]:
    """Return the sets of jobs that wait for each other, each with one circle. O(jobs + edges).

    The jobs of a set may be in further circles. Once the named one is broken, the next one is
    named.

    Args:
        edges: for each job the jobs that it waits for, by key.
    """
    all_circles: list[Circle] = []
    for members in _components(edges):
        start = min(members)
        if len(members) == 1 and start not in edges[start]:
            continue
        keys = _around(start, edges, members=members)
        if len(keys) > MOST_NAMED + 1:
            keys = (*keys[:MOST_NAMED], "...", start)
        all_circles.append(Circle(keys=keys, members=members))
    return all_circles


def _around(
    start: str, edges: Mapping[str, Collection[str]], *, members: frozenset[str]
) -> tuple[str, ...]:
    """Return a shortest circle through a job, by key. O(edges of the members).

    Args:
        start: key of the job.
        edges: for each job the jobs that it waits for.
        members: all jobs that wait for this one and for which it waits.
    """
    before: dict[str, str] = {}
    line = [start]
    for key in line:
        for successor in edges[key]:
            if successor == start:
                path = [start, key]
                while path[-1] != start:
                    path.append(before[path[-1]])
                return tuple(reversed(path))
            if successor in members and successor not in before:
                before[successor] = key
                line.append(successor)
    raise AssertionError("a job of a circle is in none")


def _components(edges: Mapping[str, Collection[str]]) -> Iterator[frozenset[str]]:
    """Yield the sets of jobs that reach each other, single jobs too. O(jobs + edges).

    Tarjan's algorithm (https://doi.org/10.1137/0201010) without recursion.
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    open_keys: dict[str, None] = {}
    for start in edges:
        if start in index:
            continue
        ahead = [(start, iter(edges[start]))]
        index[start] = low[start] = len(index)
        open_keys[start] = None
        while ahead:
            key, successors = ahead[-1]
            successor = next((each for each in successors if each in edges), None)
            if successor is not None:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    open_keys[successor] = None
                    ahead.append((successor, iter(edges[successor])))
                elif successor in open_keys:
                    low[key] = min(low[key], index[successor])
                continue
            ahead.pop()
            if ahead:
                above = ahead[-1][0]
                low[above] = min(low[above], low[key])
            if low[key] == index[key]:
                members: list[str] = []
                while not members or members[-1] != key:
                    members.append(open_keys.popitem()[0])
                yield frozenset(members)


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
