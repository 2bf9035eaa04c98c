"""Which requests delete pods: a whole generation at once where no member's pod is of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from drumline.lifecycle.model.members import Member
from drumline.lifecycle.model.observed import PodFacts
from drumline.lifecycle.plan.actions import Action, DeletePods, DeleteStrays


def deletion_of(strays: Iterable[PodFacts], *, beside: Collection[Member] = ()) -> list[Action]:
    """Actions that delete these pods, where they are not going already, and no member's.

    A generation that no member was born in goes with one request, however large it was.
    """
    births = {member.birth for member in beside}
    staying = [pod for pod in strays if not pod.terminating]
    generations = {pod.generation for pod in staying} - births
    single = tuple(pod for pod in staying if pod.generation in births)
    actions: list[Action] = []
    if generations:
        actions.append(DeletePods(generations=tuple(sorted(generations))))
    if single:
        actions.append(DeleteStrays(pods=single))
    return actions
