"""The policy of `quota.preemption_policy` and its potential, read from their definitions.

`policy_violations` judges a whole set of victims. `potential` is what every preemption lowers: by
depth of the queue tree what each branch there has borrowed and has had, for its weight, largest
first; then the priorities that run, highest first (as negative numbers, so that higher is lower).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from drumline_scheduler.model import Gang, PreemptionRule, Reclaim, WithinQueue
from tests.property.invariants.quota import QueueShares

Potential = tuple[tuple[tuple[float, ...], ...], tuple[int, ...]]
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGang:
    """A gang that runs, or will, as far as preemption is concerned."""

    gang: Gang
    gpus: int
    whole: bool = True
    """Whether it runs at all: a broken gang does not until it is repaired."""
    is_foreign: bool = False
    """Whether it is a foreign pod: it may be reclaimed, as far as all of it was borrowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PreemptionCase:
    """A set of victims and the gang in their place."""

    gang: Gang
    rule: PreemptionRule
    before: QueueShares
    after: QueueShares
    way: Sequence[str]
    """From the gang's queue up."""
    reclaimed: dict[str, list[int]]
    """By branch off that way: GPUs of the victims below it that are jobs."""
    pods: dict[str, int]
    """By branch off that way: GPUs of the foreign pods among the victims below it."""
    meetings: dict[int, set[str]]
    """By place on that way: the topmost branches of the victims' sides that join it there."""


def policy_violations(
    *, shares: QueueShares, asks: RunningGang, victims: Sequence[RunningGang]
) -> list[str]:
    """Why a set of victims may not be sent away for a gang; empty if it may."""
    gang = asks.gang
    without = shares
    for victim in victims:
        without = without.holding(victim.gang.queue, -victim.gpus)
    after = without.holding(gang.queue, asks.gpus)
    case = _PreemptionCase(
        gang=gang,
        rule=shares.queues[gang.queue].preemption,
        before=shares,
        after=after,
        way=shares.way(gang.queue),
        reclaimed=defaultdict(list),
        pods=defaultdict(int),
        meetings=defaultdict(set),
    )
    violations: list[str] = []
    if asks.gpus and (problem := after.problem(gang.queue, before=without)):
        violations.append(f"{gang.key}: {problem}")
    violations += _cap(asks=asks, shares=shares, victims=victims)
    if gang.override is not None and _by_override(case=case, asks=asks, victims=victims):
        return violations
    for victim in victims:
        if victim.gang.queue == gang.queue:
            violations += _not_below(case=case, victim=victim)
        else:
            violations += _collect(case=case, asks=asks, victim=victim)
    return violations + _raised(case) + _not_borrowed(case) + _without_right(case)


def _by_override(
    *, case: _PreemptionCase, asks: RunningGang, victims: Sequence[RunningGang]
) -> bool:
    """Return whether an override may take all of these. Only the rule of its own queue counts."""
    return all(
        not _not_below(case=case, victim=victim)
        if victim.gang.queue == case.gang.queue
        else not victim.is_foreign and victim.gpus and asks.gpus
        for victim in victims
    )


def potential(*, shares: QueueShares, running: Iterable[RunningGang]) -> Potential:
    """What every preemption lowers."""
    by_depth: dict[int, list[float]] = defaultdict(list)
    for branch in shares.branches():
        by_depth[len(shares.upward(branch))].append(shares.heaviness(branch))
    levels = tuple(tuple(sorted(by_depth[depth], reverse=True)) for depth in sorted(by_depth))
    return levels, tuple(sorted(-held.gang.priority for held in running if held.whole))


def _cap(*, asks: RunningGang, shares: QueueShares, victims: Sequence[RunningGang]) -> list[str]:
    """The user's cap, if victims in the gang's queue must leave for it."""
    gang = asks.gang
    freed = sum(
        victim.gpus
        for victim in victims
        if (victim.gang.queue, victim.gang.user) == (gang.queue, gang.user)
    )
    limit = (shares.queues[gang.queue].user_limit or {}).get(shares.pool)
    held = shares.users.get((gang.queue, gang.user), 0)
    if limit is None or not asks.gpus or held - freed + asks.gpus <= limit:
        return []
    return [f"{gang.key}: user {gang.user!r} would hold more than the {limit} they may"]


def _not_below(*, case: _PreemptionCase, victim: RunningGang) -> list[str]:
    violations: list[str] = []
    if case.rule.within_queue is WithinQueue.NEVER:
        violations.append(f"{case.gang.key}: its queue sends nobody away")
    if victim.is_foreign:
        violations.append(f"{case.gang.key}: {victim.gang.key} is of its own queue")
    if victim.gang.priority >= case.gang.priority:
        violations.append(f"{case.gang.key}: {victim.gang.key} has no lower priority")
    return violations


def _collect(*, case: _PreemptionCase, asks: RunningGang, victim: RunningGang) -> list[str]:
    theirs = case.before.way(victim.gang.queue)
    off = [branch for branch in theirs if branch not in case.way]
    nothing = not victim.gpus or not asks.gpus or case.rule.reclaim is Reclaim.NEVER
    spared = case.rule.reclaim is Reclaim.LOWER_PRIORITY and (
        victim.is_foreign or victim.gang.priority >= case.gang.priority
    )
    if len(off) == len(theirs) or nothing or spared:
        return [f"{case.gang.key}: nothing to reclaim from {victim.gang.key}"]
    for branch in off:
        if victim.is_foreign:
            case.pods[branch] += victim.gpus
        else:
            case.reclaimed[branch].append(victim.gpus)
    case.meetings[case.way.index(theirs[len(off)])].add(off[-1])
    return []


def _raised(case: _PreemptionCase) -> list[str]:
    """Branches that others pay for although nothing was reclaimed below them."""
    shared = case.way[max(case.meetings, default=0) :]
    raised = [each for each in shared if case.after.borrowed(each) > case.before.borrowed(each)]
    return [f"{case.gang.key}: {raised} borrow more by a preemption"] if raised else []


def _not_borrowed(case: _PreemptionCase) -> list[str]:
    violations: list[str] = []
    for branch in case.reclaimed.keys() | case.pods.keys():
        jobs, pods = case.reclaimed.get(branch, []), case.pods.get(branch, 0)
        borrowed = case.before.borrowed(branch)
        covered = pods + sum(jobs) - max(jobs) < borrowed if jobs else pods <= borrowed
        if not covered:
            taken = f"{pods + sum(jobs)} reclaimed of {borrowed}"
            violations.append(f"{case.gang.key}: {taken} that {branch} borrowed")
    return violations


def _without_right(case: _PreemptionCase) -> list[str]:
    """Where the gang's side is not entitled to what was reclaimed."""
    violations: list[str] = []
    for place, tops in case.meetings.items():
        if not case.after.borrowed(side := case.way[place - 1]):
            continue
        if case.rule.reclaim is Reclaim.FAIR_SHARE:
            violations += _unfair(case=case, side=side, tops=tops)
        else:
            violations.append(f"{case.gang.key}: reclaims although {side} borrows")
    return violations


def _unfair(*, case: _PreemptionCase, side: str, tops: set[str]) -> list[str]:
    mine = case.after.heaviness(side)
    lighter = [top for top in sorted(tops) if case.after.heaviness(top) < mine - _ROUNDING]
    violations = [f"{case.gang.key}: {top} has less than {side} afterwards" for top in lighter]
    taken = {each: sum(gpus) for each, gpus in case.reclaimed.items()}
    for each, gpus in case.pods.items():
        taken[each] = taken.get(each, 0) + gpus
    below = [each for each in taken if tops & {each, *case.before.upward(each)}]
    return violations + [
        f"{case.gang.key}: {each} falls below its quota for one that borrows"
        for each in below
        if taken[each] > case.before.borrowed(each)
    ]
