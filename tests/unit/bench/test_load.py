"""Rounds of the control-plane bench: names of their own, and an account of a round that stalls."""

from __future__ import annotations

from tools.bench.load import bound_pods, of_round, stalled
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
        raw = {pod["metadata"]["name"] for pod in bound_pods(f"raw-r{number}", ["a"], gpus=GPUS)}
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
