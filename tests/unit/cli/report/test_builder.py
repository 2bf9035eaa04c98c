from __future__ import annotations

from typing import Any

import pytest

from drumline.overview import advice
from drumline_api.conditions import Phase, Reason
from drumline_cli.report.model import Health, SummaryRow
from drumline_scheduler.decisions import BlockReason
from tests.texts import missing
from tests.unit.cli.manifests import a_manifest, a_report, a_running_status, an_event, an_incident

PREEMPTION = {
    "id": "n1",
    "kind": "Preemption",
    "by": "prod/gpt",
    "requestedAt": "2026-11-21T06:55:00Z",
    "deadline": "2026-11-21T06:57:00Z",
}
CORDON = {
    "id": "Drain-1-1",
    "kind": "Drain",
    "by": "spec.unschedulable",
    "requestedAt": PREEMPTION["requestedAt"],
    "indices": [2],
}


def test_a_training_job_is_reported_with_its_figures() -> None:
    report = a_report()
    assert (report.health, report.phase, report.reason) == (Health.WELL, "Running", "Training")
    assert not missing(report.summary, "32 GPUs", "4 nodes")
    assert report.progress == 0.2105
    assert report.facts == (
        SummaryRow(name="Queue", value="research"),
        SummaryRow(name="Size", value="4 x 8 GPUs"),
        SummaryRow(name="Pods ready", value="4/4"),
        SummaryRow(name="Step", value="4\N{NO-BREAK SPACE}210 of 20\N{NO-BREAK SPACE}000"),
        SummaryRow(name="Loss", value="2.4365"),
        SummaryRow(name="Tokens/s", value="812\N{NO-BREAK SPACE}345"),
        SummaryRow(name="Time left", value="about 2 h 49 min"),
        SummaryRow(name="Checkpoint", value="step 4\N{NO-BREAK SPACE}000"),
        SummaryRow(name="Membership", value="generation 3"),
        SummaryRow(name="Age", value="1 h 55 min"),
    )
    assert report.next_steps == ()


def test_the_time_left_of_a_script_is_by_its_expected_end() -> None:
    report = a_report(a_manifest(status=a_running_status(expectedEnd="2026-11-21T07:25:30Z")))
    assert SummaryRow(name="Time left", value="about 30 min") in report.facts


@pytest.mark.parametrize(
    ("status", "health", "summary"),
    [
        ({}, Health.WAITS, "The operator has not processed it yet."),
        (
            {"phase": "Pending", "reason": "QuotaExhausted", "message": "needs 4; has 2"},
            Health.WAITS,
            "It waits. Needs 4; has 2.",
        ),
        (
            {"phase": "Starting", "message": "pod 2 pulls its image"},
            Health.RECOVERS,
            "It has its nodes, and its pods are starting. Pod 2 pulls its image.",
        ),
        (
            {"phase": "Recovering", "message": "node-3 was lost"},
            Health.RECOVERS,
            "Training is paused while it recovers. Node-3 was lost.",
        ),
        (
            {"phase": "Suspended"},
            Health.WAITS,
            (
                "It is suspended by its user and holds no GPUs. It resumes from its newest"
                " checkpoint."
            ),
        ),
        ({"phase": "Failed"}, Health.FAILED, "It has failed."),
        (
            {"phase": "Succeeded", "message": "finished at step 9"},
            Health.WELL,
            "Finished at step 9.",
        ),
        (
            a_running_status(assignment={"gpuPool": "gpus", "nodes": ["a", "b"], "absent": [1, 3]}),
            Health.WELL,
            (
                "It trains on 16 GPUs of 2 nodes in pool gpus."
                " It wants 4 nodes and grows when they are free."
            ),
        ),
        (
            a_running_status(
                assignment={"gpuPool": "gpus", "nodes": ["a", "b", "c"], "joining": [2]}
            ),
            Health.WELL,
            (
                "It trains on 16 GPUs of 2 nodes in pool gpus."
                " Its pod 2 will join when all of them are ready."
            ),
        ),
        (
            a_running_status(disruption=PREEMPTION),
            Health.WELL,
            (
                "It trains on 32 GPUs of 4 nodes in pool gpus. It is preempted by prod/gpt. It"
                " first saves a"
                " checkpoint, at the latest by 2026-11-21 06:57:00Z."
            ),
        ),
        (
            a_running_status(
                disruption={**PREEMPTION, "kind": "SpotReclaim", "by": "karpenter", "indices": [2]}
            ),
            Health.WELL,
            (
                "It trains on 32 GPUs of 4 nodes in pool gpus. Its pod 2 will be moved"
                " (SpotReclaim, announced by karpenter). It first saves a checkpoint, at the"
                " latest by"
                " 2026-11-21 06:57:00Z."
            ),
        ),
        (
            a_running_status(disruption=CORDON),
            Health.WELL,
            (
                "It trains on 32 GPUs of 4 nodes in pool gpus. Its pod 2 moves when another node"
                " is found, or is drained (Drain, announced by spec.unschedulable)."
            ),
        ),
    ],
)
def test_what_it_is_doing_and_why(status: dict[str, Any], health: Health, summary: str) -> None:
    report = a_report(a_manifest(status=status))
    assert (report.health, report.summary) == (health, summary)


def test_every_phase_has_a_sentence() -> None:
    summaries = {a_report(a_manifest(status={"phase": phase})).summary for phase in Phase}
    assert len(summaries) == len(Phase)
    assert "" not in summaries


HEALTHY = {
    *(Reason.PLACED, Reason.TRAINING, Reason.MANIFEST_VERIFIED, Reason.CHECKPOINT_REPORTED),
    *(Reason.RESUMED, Reason.COMPLETED, Reason.RESIZED, Reason.WITHDRAWN, Reason.GROWS),
    *(Reason.MEMORY_SUFFICES, Reason.RESTORED),
}
MENDS_ITSELF = {
    *(Reason.POD_FAILED, Reason.OUT_OF_MEMORY, Reason.HANG, Reason.POD_LOST, Reason.NODE_LOST),
    *(Reason.MEMBER_SILENT, Reason.MEMBER_PLACED, Reason.SHRUNK, Reason.KUBELET_REFUSED),
    *(
        Reason.MEMBERS_CHANGED,
        Reason.PREEMPTED,
        Reason.QUEUE_STOPPED,
        Reason.NODE_DISRUPTED,
        BlockReason.WAITING_FOR_VICTIMS,
        BlockReason.WAITING_FOR_JOBS,
        BlockReason.NOT_TRIED,
    ),
}


def test_every_reason_either_has_advice_or_needs_none() -> None:
    silent = {str(reason) for reason in HEALTHY | MENDS_ITSELF}
    known = {str(reason) for reason in (*Reason, *BlockReason)}
    assert known - silent - advice.BY_REASON.keys() == set()
    assert silent & advice.BY_REASON.keys() == set()
    assert advice.BY_REASON.keys() - known == {"InvalidConfig", "PriorityClassNotFound"}


@pytest.mark.parametrize(
    ("spec", "resumption"),
    [
        ({"checkpoint": None}, "It has no checkpoint storage, so it begins at step 0"),
        (
            {"trainer": None, "checkpoint": None, "template": {"image": "mine:1"}},
            "Its pods start again when it continues. Drumline does not know",
        ),
    ],
)
def test_only_a_trainer_with_a_claim_is_said_to_resume_at_a_checkpoint(
    spec: dict[str, Any], resumption: str
) -> None:
    report = a_report(a_manifest(status={"phase": "Suspended"}, **spec))
    assert resumption in report.summary
    assert "newest checkpoint" not in report.summary


@pytest.mark.parametrize("reason", ["QueueNotFound", "PoolNotFound", "ExceedsQuota"])
def test_a_remedy_in_the_spec_says_that_the_job_has_to_be_suspended_first(reason: str) -> None:
    status = {"phase": "Pending", "reason": reason}
    waiting = a_report(a_manifest(status=status))
    suspended = a_report(a_manifest(status=status, suspend=True))
    assert [step for step in waiting.next_steps if "set suspend to true" in step]
    assert suspended.next_steps == (advice.BY_REASON[reason],)


def test_a_job_whose_storage_is_full_says_what_it_waits_for() -> None:
    waiting = a_running_status(reason="StorageUnavailable", message="no space left on device")
    report = a_report(a_manifest(status=waiting))
    assert not missing(report.summary, "storage", "No space left on device")
    assert report.next_steps == (advice.BY_REASON[Reason.STORAGE_UNAVAILABLE],)


def test_a_gang_that_is_held_is_not_said_to_train() -> None:
    held = a_running_status(reason="Held", message="held until noon: rank 3: ValueError")
    report = a_report(a_manifest(status=held))
    assert not missing(report.summary, "rank 3", "ValueError")
    assert report.next_steps == (advice.BY_REASON[Reason.HELD],)


def test_a_remedy_outside_of_the_spec_does_not() -> None:
    report = a_report(a_manifest(status={"phase": "Pending", "reason": "QuotaExhausted"}))
    assert report.next_steps == (advice.BY_REASON["QuotaExhausted"],)


def test_a_job_without_durable_storage_is_advised_to_name_a_claim() -> None:
    warned = {
        "type": "Checkpointed",
        "status": "False",
        "reason": "NoDurableStorage",
        "lastTransitionTime": "2026-11-21T05:14:02Z",
    }
    _, step = a_report(a_manifest(status=a_running_status(conditions=[warned]))).next_steps
    assert step.startswith("Set checkpoint.claimName")


def test_a_budget_that_is_used_up_is_worth_a_warning_while_the_job_lives() -> None:
    used = {"faultClass": "Hang", "used": 3, "recent": [{"at": "2026-11-21T06:00:00Z", "count": 3}]}
    (step,) = a_report(a_manifest(status=a_running_status(budgets=[used]))).next_steps
    assert not missing(step, "Hang")
    over = a_running_status(phase="Succeeded", reason="Completed", budgets=[used])
    assert a_report(a_manifest(status=over)).next_steps == ()


def test_a_node_at_fault_again_and_again_is_named() -> None:
    twice = a_running_status(
        lastIncident=an_incident(), earlierIncidents=[an_incident(), an_incident(node="node-1")]
    )
    assert a_report(a_manifest(status=twice)).next_steps == ()
    thrice = {**twice, "earlierIncidents": [*twice["earlierIncidents"], an_incident()]}
    (step,) = a_report(a_manifest(status=thrice)).next_steps
    assert not missing(step, "node-3", "3 of the last 4", "cordon")


def test_the_newest_event_comes_first_and_a_series_is_counted() -> None:
    older = an_event(deprecatedLastTimestamp="2026-11-21T05:00:00Z", reason="Placed", type="Normal")
    series = {"count": 7, "lastObservedTime": "2026-11-21T06:50:00Z"}
    report = a_report(None, older, an_event(series=series))
    assert [(event.reason, event.times, event.warning) for event in report.events] == [
        ("MemberReplaced", 7, True),
        ("Placed", 1, False),
    ]
