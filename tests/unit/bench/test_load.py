"""Rounds of the control-plane bench: names of their own, and an account of a round that stalls."""

from __future__ import annotations

import pytest

from tools.bench.load import bound_pods, has_ended, of_round, raw_name, stalled
from tools.bench.shapes import GPUS, SHAPES


def test_no_pod_of_a_round_has_the_name_of_an_earlier_pod() -> None:
    seen: set[str] = set()
    for number in range(3):
        for shape in SHAPES[:3]:
            names = {
                job["metadata"]["name"] for job in of_round(shape.jobs(), 10 * number + len(seen))
            }
            assert names
            assert not names & seen
            seen |= names
        for nodes in (500, 5000):
            pods = bound_pods(raw_name(nodes, number), ["a"], gpus=GPUS)
            raw = {pod["metadata"]["name"] for pod in pods}
            assert not raw & seen
            seen |= raw


def test_a_stalled_round_names_phases_reasons_and_one_job_each() -> None:
    jobs = [(f"low-{index}-r2", {"phase": "Running", "reason": "Training"}) for index in range(3)]
    jobs.append(("low-9-r2", {"phase": "Pending", "reason": "PodLost", "message": "g1 vanished"}))
    jobs.append(("high-0-r2", {}))
    text = stalled(jobs)
    assert text.startswith("3 Running Training, such as low-0-r2")
    assert "1 Pending PodLost, such as low-9-r2: g1 vanished" in text
    assert "1 new, such as high-0-r2: no message" in text
    assert stalled([]) == "no job is left"


def test_a_stalled_round_of_a_peer_is_read_from_its_state_or_conditions() -> None:
    waits = {"type": "QuotaReserved", "reason": "Pending", "message": "no quota left"}
    text = stalled([("a", {"state": {"phase": "Inqueue"}}), ("b", {"conditions": [waits]})])
    assert "1 Inqueue, such as a: no message" in text
    assert "1 QuotaReserved Pending, such as b: no quota left" in text


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        ({}, False),
        ({"finishedAt": "2026-11-29T12:00:00Z"}, True),
        ({"conditions": [{"type": "Complete", "status": "True"}]}, True),
        ({"conditions": [{"type": "Finished", "status": "False"}]}, False),
        ({"conditions": [{"type": "Admitted", "status": "True"}]}, False),
        ({"conditions": [{"status": "Running"}]}, False),
    ],
)
def test_a_job_of_any_side_is_over_by_its_time_or_its_condition(
    status: dict[str, object], *, ended: bool
) -> None:
    assert has_ended(status) is ended
