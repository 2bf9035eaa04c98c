"""The memory of a job expires on time, also after the clock was set back."""

from __future__ import annotations

import pytest

from drumline.controller.reconciler.job_memory import UNSEEN_SECONDS, JobMemory
from tests.builders import T0, a_job, admitted, ready_pods

HOUR = 3600.0


@pytest.mark.parametrize(
    ("later", "expected"),
    [(0, True), (UNSEEN_SECONDS - 1, True), (UNSEEN_SECONDS, False), (-HOUR, False)],
    ids=["at once", "in time", "later", "clock set back"],
)
def test_pods_are_expected_for_a_while(later: float, expected: bool) -> None:
    memory, (pod, *_) = JobMemory(), ready_pods(admitted(a_job()))
    memory.unseen[pod.name] = T0
    memory.labelled[pod.uid] = (True, T0)
    memory.note_deleted([pod], now=T0)
    now = T0 + later
    assert memory.is_deleted(pod.uid, now=now) == expected
    assert memory.is_labelled(pod.uid, protected=True, now=now) == expected
    assert (pod.name in memory.unseen_at(now, shown=set())) == expected
    memory.note_deleted([], now=now)
    assert (pod.uid in memory.deleted) == expected
