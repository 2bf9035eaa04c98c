"""Which requests delete pods: a whole generation at once where no member's pod is of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from drumline.lifecycle.model.members import GangMember
from drumline.lifecycle.model.observed import PodFacts
from drumline.lifecycle.plan.actions import Action, DeleteGenerations, DeletePods


def delete_actions(
    strays: Iterable[PodFacts], *, beside: Collection[GangMember] = ()
) -> list[Action]:
    """Actions that delete these pods, where they are not going already, and no member's.

    A generation that no member was born in goes with one request, however large it was.
    """
    births = {member.pod_generation for member in beside}
    staying = [pod for pod in strays if not pod.terminating]
    generations = {pod.generation for pod in staying} - births
    single = tuple(pod for pod in staying if pod.generation in births)
    actions: list[Action] = []
    if generations:
        actions.append(DeleteGenerations(generations=tuple(sorted(generations))))
    if single:
        actions.append(DeletePods(pods=single))
    return actions
