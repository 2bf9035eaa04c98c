"""The agents' log folded into status: each number once, whenever it is read."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.lifecycle import transitions
from drumline.lifecycle.incidents import ledger
from drumline.lifecycle.incidents import timeline as incidents
from drumline.lifecycle.model.job import Job
from drumline_api.conditions import Reason
from drumline_api.incidents import IncidentNumber
from drumline_api.jobstatus import CheckpointStatus
from drumline_contract import FaultClass, Incident, Progress, RestoreTier
from tests.builders import EPOCH, T0, a_job, admitted, observed, running, with_status

NOW = T0 + 100


def in_place(attempt: int, *, generation: int = 1, over: bool = True, **facts: Any) -> Incident:
    plain: dict[str, Any] = {
        "generation": generation,
        "attempt": attempt,
        "fault_class": FaultClass.APPLICATION,
        "cause": "rank 0: ValueError: boom",
        "culprit_index": 0,
        "fault_at": T0 + 10 * attempt,
        "detected_at": T0 + 10 * attempt,
        "restored_at": T0 + 10 * attempt + 2 if over else None,
        "first_step_at": T0 + 10 * attempt + 2 if over else None,
        "failed_step": 10 * attempt,
        "restored_step": 10 * attempt - 1,
        "tier": RestoreTier.MEMORY,
    }
    return Incident(**{**plain, **facts})


def opening(**facts: Any) -> incidents.IncidentStatus:
    """What the operator writes down as it opens generation 2."""
    plain: dict[str, Any] = {
        "generation": 2,
        "attempt": 0,
        "fault_class": FaultClass.INFRASTRUCTURE,
        "fault_at": "2023-11-14T22:13:20.000Z",
    }
    return incidents.IncidentStatus(**{**plain, **facts})


def a_running_job(**status: Any) -> Job:
    job = running(admitted(a_job()))
    return with_status(job, job.status.model_copy(update=status))


def folded(job: Job, *log: Incident, every: bool = False) -> Job:
    return with_status(
        job,
        ledger.with_agent_incidents(job, observed(incidents=log), now=NOW, include_running=every),
    )


def used(job: Job) -> dict[str, int]:
    return {str(budget.fault_class): budget.used for budget in job.status.budgets or ()}


def causes(job: Job) -> list[int]:
    last = job.status.last_incident
    entries = [*([last] if last else []), *(job.status.earlier_incidents or ())]
    return [entry.attempt for entry in entries]


def test_every_number_is_counted_once_and_the_newest_stands_first() -> None:
    job = folded(a_running_job(), in_place(1), in_place(2))
    assert used(job) == {"Application": 2}
    assert job.status.folded_incident == IncidentNumber(generation=1, attempt=2)
    assert causes(job) == [2, 1]
    assert folded(job, in_place(1), in_place(2)) == job
    assert used(folded(job, in_place(1), in_place(2), in_place(3))) == {"Application": 3}


def test_each_counts_against_its_class() -> None:
    log = (in_place(1), in_place(2, fault_class=FaultClass.OUT_OF_MEMORY))
    assert used(folded(a_running_job(), *log)) == {"Application": 1, "OutOfMemory": 1}


def test_a_recovery_counts_once_against_each_class_it_recovers_from() -> None:
    kinds = (FaultClass.OUT_OF_MEMORY, FaultClass.HANG, FaultClass.APPLICATION)
    job = folded(a_running_job(), in_place(1, also=kinds))
    assert used(job) == {"Application": 1, "OutOfMemory": 1, "Hang": 1}
    assert folded(job, in_place(1, also=kinds)) == job


def test_what_another_loss_interrupted_is_counted_and_stays_behind_that() -> None:
    job = a_running_job()
    entry = opening(cause="pod llama-1-g1 on node-b vanished")
    opened = ledger.with_incident(job.status, entry).model_copy(update={"generation": 2})
    job = folded(with_status(job, opened), in_place(1, over=False))
    assert (used(job), causes(job)) == ({"Application": 1}, [0, 1])
    done = folded(job, in_place(1, over=False), in_place(0, generation=2))
    assert done.status.last_incident is not None
    assert incidents.is_over(done.status.last_incident)


def test_a_recovery_under_way_is_counted_when_it_is_over_or_another_took_its_place() -> None:
    under_way = in_place(1, over=False)
    job = a_running_job()
    assert folded(job, under_way) == job
    assert used(folded(job, in_place(1))) == {"Application": 1}
    assert used(folded(job, under_way, in_place(2, over=False))) == {"Application": 1}
    assert used(folded(job, under_way, every=True)) == {"Application": 1}


def test_what_an_ended_generation_left_open_is_counted_in_the_next() -> None:
    job = a_running_job(generation=2)
    assert used(folded(job, in_place(1, over=False))) == {"Application": 1}


def test_a_number_of_the_future_or_of_the_operator_is_not_counted() -> None:
    job = a_running_job()
    assert folded(job, in_place(1, generation=2)) == job
    assert folded(job, in_place(0)) == job


def test_only_the_last_eight_are_kept() -> None:
    job = folded(a_running_job(), *(in_place(number) for number in range(1, 12)))
    assert causes(job) == [11, 10, 9, 8, 7, 6, 5, 4]
    assert used(job) == {"Application": 11}


def test_the_operator_s_incident_is_completed_by_the_agents_and_not_charged_again() -> None:
    job = a_running_job()
    entry = opening(cause="pod llama-1-g1 on node-b vanished", detect_milliseconds=1000)
    status = ledger.with_incident(job.status, entry)
    job = with_status(job, status.model_copy(update={"generation": 2}))
    theirs = in_place(0, generation=2, failed_step=7, restored_step=7)
    assert folded(job, in_place(0, generation=2, over=False)) == job
    done = folded(job, theirs)
    last = done.status.last_incident
    assert last is not None
    assert incidents.is_over(last)
    assert (last.cause, last.steps_lost) == (entry.cause, 0)
    assert used(done) == {}
    assert folded(done, theirs) == done


def test_time_lost_in_place_and_steps_done_twice_were_no_progress() -> None:
    job = running(admitted(a_job()))  # two nodes of two GPUs, 16 x 128 tokens a step
    job = with_status(job, job.status.model_copy(update={"tokens_per_second": 4096}))
    account = folded(job, in_place(1)).status.gpu_seconds
    assert account is not None
    assert (account.recovering, account.repeated) == (4 * 2, 4 * 1 * 0.5)
    assert account.productive == 4 * 100 - 8 - 2


@pytest.mark.parametrize(
    ("steps", "classes", "repeats"),
    [
        ([5, 5, 5], "AAA", [1, 2, 3]),
        ([5, 4, 5], "AHO", [1, 2, 1]),
        ([5, 6, 6], "AAA", [1, 1, 2]),
        ([5, 5, 5], "AIA", [1, 1, 1]),
        ([0, 0, 0], "AAA", [1, 2, 3]),
    ],
)
def test_faults_of_the_program_without_a_step_between_them_are_a_row(
    steps: list[int], classes: str, repeats: list[int]
) -> None:
    kinds = {kind[0]: kind for kind in FaultClass}
    log = [
        in_place(at + 1, failed_step=step, fault_class=kinds[letter])
        for at, (step, letter) in enumerate(zip(steps, classes, strict=True))
    ]
    job = a_running_job()
    counted: list[int] = []
    for number in range(len(log)):
        job = folded(job, *log[: number + 1])
        assert job.status.last_incident is not None
        counted.append(job.status.last_incident.repeats)
    assert counted == repeats


def test_fresh_agents_know_nothing_of_before_so_their_first_step_ends_the_incident() -> None:
    job = a_running_job(checkpoint=CheckpointStatus(step=8, digest="d"))
    entry = opening(cause="boom", fault_class=FaultClass.APPLICATION, failed_step=10)
    opened = ledger.with_incident(job.status, entry)
    assert ledger.with_step_seen(job, opened, 9, now=NOW) == opened
    status = ledger.with_boundary_passed(opened, incidents.REPLACED, now=T0 + 5)
    assert ledger.with_step_seen(job, status, 8, now=NOW) == status
    last = ledger.with_step_seen(job, status, 9, now=NOW).last_incident
    assert last is not None
    assert (last.restored_step, last.steps_lost) == (8, 2)
    assert incidents.total_milliseconds(last) == 100_000


def test_boundaries_are_noted_in_the_transitions_themselves() -> None:
    job = a_running_job()
    lost = transitions.members_lost(
        job, indices={1}, reason=Reason.POD_LOST, message="gone", now=T0 + 1
    )
    entry = opening(cause="gone", detect_milliseconds=1000)
    job = with_status(job, ledger.with_incident(lost, entry))
    nodes = ["node-a", "node-c"]
    status = transitions.members_replaced(job, nodes=nodes, replaced=[1], epoch=EPOCH, now=T0 + 3)
    job = with_status(job, status)
    job = with_status(job, transitions.running(job, now=T0 + 7))
    last = job.status.last_incident
    assert last is not None
    assert (last.decide_milliseconds, last.replace_milliseconds) == (2000, 4000)
    refreshed = transitions.with_progress(job, job.status, Progress(step=1), now=NOW)
    assert refreshed.last_incident == last
