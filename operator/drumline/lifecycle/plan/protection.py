"""Select the members that a drain may evict, and how the eviction API is controlled.

The pods of a small gang are in their namespace's PodDisruptionBudget, which denies every eviction.
A pod that may be evicted is released from it by its label. A large gang, and a gang that an earlier
version started, has its own budget, whose number of evictable pods is changed.
"""

from __future__ import annotations

from collections.abc import Collection

from drumline.lifecycle.plan.actions import JobPlan, LabelPods, ProtectMembers
from drumline.lifecycle.plan.situation import Situation


def protection(
    situation: Situation, *, evictable: Collection[int] = (), asks: bool = True
) -> JobPlan | None:
    """Return the action that makes exactly these members evictable. None if they are.

    Args:
        situation: situation of a gang with an assignment.
        evictable: indices of the members that a drain may evict.
        asks: whether to create the job's own budget if this operator does not know one.
    """
    pods = situation.gang.present
    # A pod without the label is not in the shared budget, so the job has its own.
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
