from __future__ import annotations

from typing import Any

import pytest

from drumline_cli.report.model import GpuSecondsShare, RestartBudget
from tests.unit.cli.manifests import a_manifest, a_report, a_running_status, an_incident


def story_of(**status: Any) -> Any:
    return a_report(a_manifest(status=a_running_status(**status)))


def test_the_stages_of_an_incident_touch_each_other_and_add_up() -> None:
    (incident,) = story_of(lastIncident=an_incident()).incidents
    ends = [incident.at]
    for stage in incident.stages:
        assert stage.begins_at == pytest.approx(ends[-1], abs=1e-6)
        ends.append(stage.begins_at + stage.seconds)
    assert [stage.name for stage in incident.stages] == [
        "Detect",
        "Decide",
        "Replace",
        "Rendezvous",
        "Restore",
        "First step",
    ]
    assert incident.milliseconds == 5104 + 212 + 8930 + 304 + 1220 + 640
    assert ends[-1] == pytest.approx(incident.at + incident.seconds, abs=1e-6)
    assert incident.over


def begun_incident() -> dict[str, Any]:
    begun = an_incident()
    for field in ("replace", "rendezvous", "restore", "firstStep"):
        del begun[f"{field}Milliseconds"]
    return begun


def test_the_stage_under_way_lasts_until_now() -> None:
    (incident,) = story_of(phase="Recovering", lastIncident=begun_incident()).incidents
    assert not incident.over
    assert [(stage.name, stage.milliseconds, stage.under_way) for stage in incident.stages] == [
        ("Detect", 5104, False),
        ("Decide", 212, False),
        ("Replace", 852_684, True),
    ]


def test_a_stage_that_a_job_s_end_cut_off_lasts_until_then() -> None:
    ended = story_of(
        phase="Failed", lastIncident=begun_incident(), finishedAt="2026-11-21T06:41:20Z"
    )
    assert ended.incidents[0].milliseconds == 8000


def test_a_job_that_trains_again_waits_for_no_stage_whose_end_was_never_reported() -> None:
    report = story_of(lastIncident=begun_incident(), earlierIncidents=[begun_incident()])
    assert [incident.milliseconds for incident in report.incidents] == [5316, 5316]


@pytest.mark.parametrize(
    ("changes", "root_cause", "detection"),
    [
        ({}, "pod llama-2-g1 on node-3", "5.10 s after its last heartbeat"),
        (
            {"rank": 17, "faultClass": "Application", "detectMilliseconds": 14},
            "rank 17 in pod llama-2-g1 on node-3",
            "14 ms after the fault",
        ),
        (
            {"pod": None, "node": None, "faultClass": "Hang"},
            "pod index 2",
            "after 5.10 s, in which it sent no heartbeat while the other ranks waited for it",
        ),
        (
            {"faultClass": "Preemption", "pod": None, "node": None},
            "pod index 2",
            "it was announced",
        ),
        ({"node": None, "detectMilliseconds": 0}, "pod llama-2-g1", "at once"),
        ({"pod": None, "index": None, "node": None, "detectMilliseconds": None}, "", ""),
    ],
)
def test_an_incident_names_its_root_cause_and_how_it_was_detected(
    changes: dict[str, Any], root_cause: str, detection: str
) -> None:
    (incident,) = story_of(lastIncident=an_incident(**changes)).incidents
    assert (incident.root_cause, incident.detection) == (root_cause, detection)


def test_the_newest_incident_comes_first() -> None:
    report = story_of(
        lastIncident=an_incident(generation=4),
        earlierIncidents=[an_incident(attempt=1), an_incident(generation=2)],
    )
    assert [incident.number for incident in report.incidents] == ["4.0", "3.1", "2.0"]


def test_a_fault_that_repeats_says_so() -> None:
    (incident,) = story_of(lastIncident=an_incident(repeats=3)).incidents
    assert incident.cause.endswith("(fault 3 in a row without a new step between them)")


def test_only_faults_inside_the_window_count_against_a_budget() -> None:
    recent = [
        {"at": "2026-11-20T06:55:30Z", "count": 5},
        {"at": "2026-11-21T04:00:00Z", "count": 1},
        {"at": "2026-11-21T06:00:00Z", "count": 1},
    ]
    charged = [{"faultClass": "Application", "used": 9, "recent": recent}]
    manifest = a_manifest(status=a_running_status(budgets=charged), recovery={"maxRestarts": 2})
    budgets = {budget.fault_class: budget for budget in a_report(manifest).budgets}
    assert list(budgets) == ["Application", "OutOfMemory", "Hang", "Infrastructure"]
    assert budgets["Application"] == RestartBudget(
        fault_class="Application", used=2, allowed=2, total=9, next_back_at=1795320000.0
    )
    assert [budgets[name].left for name in budgets] == [0, 1, 3, None]


def test_gpu_seconds_are_shares_of_all_that_were_held() -> None:
    held = {"until": "2026-11-21T06:55:12Z", "productive": 900, "starting": 75, "recovering": 25}
    report = story_of(gpuSeconds=held, assignment=None)
    assert report.shares == (
        GpuSecondsShare(state="Productive", gpu_seconds=900, share=0.9, productive=True),
        GpuSecondsShare(state="Starting", gpu_seconds=75, share=0.075, productive=False),
        GpuSecondsShare(state="Recovering", gpu_seconds=25, share=0.025, productive=False),
    )
    assert report.goodput == 0.9


def test_what_was_held_since_the_last_status_write_counts_too() -> None:
    """The status of a job with a template is not written while it runs."""
    running = {
        "type": "Running",
        "status": "True",
        "reason": "Training",
        "lastTransitionTime": "2026-11-21T06:55:00Z",
    }
    held = {"until": "2026-11-21T06:55:00Z", "starting": 40}
    report = story_of(gpuSeconds=held, conditions=[running])
    assert report.shares == (
        GpuSecondsShare(state="Productive", gpu_seconds=960, share=0.96, productive=True),
        GpuSecondsShare(state="Starting", gpu_seconds=40, share=0.04, productive=False),
    )


def test_a_job_that_has_held_no_gpu_has_no_goodput() -> None:
    assert story_of().goodput is None


def test_what_faults_cost_is_divided_by_how_long_they_took_and_what_they_repeated() -> None:
    hang = an_incident(faultClass="Hang", stepsLost=6, firstStepMilliseconds=16_410 * 2 + 640)
    account = {"productive": 900, "recovering": 100, "repeated": 8, "starting": 5}
    report = story_of(
        lastIncident=an_incident(),
        earlierIncidents=[hang],
        gpuSeconds={"until": "2026-11-21T06:55:30Z", **account},
    )
    assert [(each.state, each.fault_class, each.gpu_seconds) for each in report.losses] == [
        ("Recovering", "Hang", 75),
        ("Recovering", "Infrastructure", 25),
        ("Repeated", "Hang", 6),
        ("Repeated", "Infrastructure", 2),
    ]


def test_what_no_incident_on_record_explains_is_of_earlier_ones() -> None:
    account = {"until": "2026-11-21T06:55:30Z", "productive": 90, "repeated": 8}
    (loss,) = story_of(gpuSeconds=account).losses
    assert (loss.state, loss.fault_class, loss.gpu_seconds) == ("Repeated", "earlier", 8)


def test_an_incident_ends_with_its_job_and_with_the_next_incident() -> None:
    begun = begun_incident()
    report = story_of(
        phase="Succeeded",
        lastIncident=begun,
        earlierIncidents=[begun],
        finishedAt="2026-11-21T06:41:20Z",
    )
    assert [incident.over for incident in report.incidents] == [True, True]


def test_stages_after_an_unknown_step_are_unknown_and_not_a_millisecond() -> None:
    without_steps = {**an_incident(), "firstStepMilliseconds": 1, "restoreMilliseconds": 0}
    for field in ("failedStep", "restoredStep", "stepsLost", "tier"):
        without_steps.pop(field, None)
    (incident,) = story_of(lastIncident=without_steps).incidents
    assert [stage.name for stage in incident.stages] == ["Detect", "Decide", "Replace"]
    assert incident.over
