"""Which requests delete pods: a whole generation at once where no member's pod belongs to it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from drumline.lifecycle.model.members import GangMember
from drumline.lifecycle.model.observed import PodFacts
from drumline.lifecycle.plan.actions import Action, DeleteGenerations, DeletePods


def delete_actions(
    pods: Iterable[PodFacts], *, members: Collection[GangMember] = ()
) -> list[Action]:
    """Actions that delete these pods, except pods that are terminating already.

    A generation in which no member's pod was created is deleted by one request, however large it
    is.

    Args:
        pods: pods to delete; none is a member's.
        members: members whose pods stay.
    """
    kept_generations = {member.pod_generation for member in members}
    live = [pod for pod in pods if not pod.terminating]
    generations = {pod.generation for pod in live} - kept_generations
    single = tuple(pod for pod in live if pod.generation in kept_generations)
    actions: list[Action] = []
    if generations:
        actions.append(DeleteGenerations(generations=tuple(sorted(generations))))
    if single:
        actions.append(DeletePods(pods=single))
    return actions
