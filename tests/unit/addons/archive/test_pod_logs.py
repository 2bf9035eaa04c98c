"""Which pods' last lines are kept."""

from __future__ import annotations

from drumline.kube.views import PodPhase, PodView
from drumline_addons.archive.pod_logs import MOST_PODS, chosen


def pod(index: int, phase: PodPhase = PodPhase.SUCCEEDED) -> PodView:
    return PodView(
        namespace="research",
        name=f"llama-{index}-g1",
        uid=f"p-{index}",
        resource_version="1",
        labels={"drumline.dev/index": str(index)},
        phase=phase,
    )


def test_pods_are_in_the_order_of_their_index() -> None:
    pods = [pod(index) for index in (10, 2, 0, 1)]
    assert [each.name for each in chosen(pods)] == [f"llama-{index}-g1" for index in (0, 1, 2, 10)]


def test_of_many_pods_those_that_failed_are_kept() -> None:
    pods = [pod(index) for index in range(500)]
    pods[321] = pod(321, PodPhase.FAILED)
    kept = chosen(pods)
    assert len(kept) == MOST_PODS
    assert kept[-1].name == "llama-321-g1"
    assert kept[0].name == "llama-0-g1"
