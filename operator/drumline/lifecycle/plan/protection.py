"""Which members a drain may evict, and how the eviction API is told.

The pods of a small gang are in their namespace's PodDisruptionBudget, which denies every eviction:
a pod that may go is taken from it by its label. A large gang has a budget of its own, and so has
one that was started by an earlier version: there the number of those who may go is changed.
"""

from __future__ import annotations

from collections.abc import Collection

from drumline.lifecycle.plan.actions import JobPlan, LabelPods, ProtectMembers
from drumline.lifecycle.plan.situation import Situation


def protection(
    situation: Situation, *, evictable: Collection[int] = (), asks: bool = True
) -> JobPlan | None:
    """What makes exactly these members evictable; None: they are.

    Args:
        situation: of a gang with an assignment.
        evictable: indices of the members that a drain may evict.
        asks: whether a budget of the job's own is made where this operator does not know of one.
    """
    pods = situation.gang.present
    if any(pod.protected is None for pod in pods):
        count, known = len(evictable), situation.observed.evictable
        if known == count or (known is None and not asks):
            return None
        return JobPlan(actions=(ProtectMembers(evictable=count),))
    stays = [pod for pod in pods if pod.end is None and not pod.terminating]
    action = LabelPods(
        protect=tuple(p for p in stays if not p.protected and p.index not in evictable),
        release=tuple(p for p in stays if p.protected and p.index in evictable),
    )
    return JobPlan(actions=(action,)) if action.protect or action.release else None
