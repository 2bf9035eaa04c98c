"""Which pods count as left behind by a job that is gone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from drumline.controller.reconciler.orphan_sweep import JobIdentity, orphans_by_job
from drumline.kube.views import PodPhase
from tests.unit.controller.views import foreign_pod, pod_view


def test_pods_without_an_owner_are_found_by_their_labels() -> None:
    left = [msgspec.structs.replace(pod_view(index=index), owner_uid="") for index in (0, 1)]
    owned = pod_view(job="other")
    assert orphans_by_job([*left, owned, foreign_pod("x")]) == {
        JobIdentity("team", "llama", "job-1"): left
    }


@pytest.mark.parametrize(
    "change",
    [
        {"owner_uid": "job-1"},
        {"owner_uid": "another"},
        {"phase": PodPhase.SUCCEEDED},
        {"terminating": True},
        {"name": "named-by-hand"},
        {"labels": {}},
    ],
)
def test_what_holds_nothing_or_is_not_ours_is_left_alone(change: dict[str, Any]) -> None:
    pod = msgspec.structs.replace(pod_view(), **{"owner_uid": "", **change})
    assert orphans_by_job([pod]) == {}
