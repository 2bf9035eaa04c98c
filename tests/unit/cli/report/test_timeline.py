from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_cli.formatting import clock
from tests.unit.cli.manifests import AS_OF, a_manifest, a_report, a_running_status, an_incident

RELEASED = {"admittedAt": "2026-11-21T05:14:02Z", "startedAt": None, "assignment": None}


def timeline(status: dict[str, Any], *, as_of: str = AS_OF) -> list[tuple[str, str, str]]:
    return [
        (span.state, clock(span.begins_at)[11:19], clock(span.ends_at)[11:19])
        for span in a_report(a_manifest(status=status), as_of=as_of).timeline
    ]


def test_it_waited_started_ran_and_recovered() -> None:
    assert timeline(a_running_status(lastIncident=an_incident())) == [
        ("Waiting", "05:00:02", "05:14:02"),
        ("Starting", "05:14:02", "05:15:40"),
        ("Running", "05:15:40", "06:41:12"),
        ("Recovering", "06:41:12", "06:41:28"),
        ("Running", "06:41:28", "06:55:30"),
    ]


def test_a_recovery_that_is_not_over_lasts_until_now() -> None:
    begun = an_incident(firstStepMilliseconds=None)
    assert timeline(a_running_status(phase="Recovering", lastIncident=begun))[-1] == (
        "Recovering",
        "06:41:12",
        "06:55:30",
    )


def test_a_job_that_was_never_placed_waits_since_it_exists() -> None:
    assert timeline({"phase": "Pending"}) == [("Waiting", "05:00:00", "06:55:30")]


def test_the_timeline_of_a_finished_job_ends() -> None:
    ended = a_running_status(phase="Succeeded", finishedAt="2026-11-21T06:00:00Z")
    assert timeline(ended)[-1] == ("Running", "05:15:40", "06:00:00")


def test_a_suspended_job_ran_before() -> None:
    suspended = {
        "type": "Suspended",
        "status": "True",
        "reason": "SuspendedByUser",
        "lastTransitionTime": "2026-11-21T06:00:00Z",
    }
    assert timeline(a_running_status(**RELEASED, conditions=[suspended])) == [
        ("Waiting", "05:00:02", "05:14:02"),
        ("Running", "05:14:02", "06:00:00"),
        ("Suspended", "06:00:00", "06:55:30"),
    ]


def test_a_preempted_job_waits_again() -> None:
    released = {
        "type": "Admitted",
        "status": "False",
        "reason": "Preempted",
        "lastTransitionTime": "2026-11-21T06:30:00Z",
    }
    assert timeline(a_running_status(**RELEASED, conditions=[released]))[-2:] == [
        ("Running", "05:14:02", "06:30:00"),
        ("Waiting", "06:30:00", "06:55:30"),
    ]


def test_time_with_an_incident_before_the_current_placement_was_not_only_waiting() -> None:
    before = an_incident(faultAt="2026-11-21T05:03:00Z")
    assert timeline(a_running_status(lastIncident=before))[0] == (
        "Earlier placements",
        "05:00:02",
        "05:14:02",
    )


def test_what_it_held_before_it_was_preempted_was_not_waiting() -> None:
    stays = [
        {"since": "2026-11-21T05:02:00Z", "until": "2026-11-21T05:06:00Z", "gpus": 32},
        {"since": "2026-11-21T05:14:02Z", "until": "2026-11-21T06:50:00Z", "gpus": 32},
    ]
    account = {"until": "2026-11-21T06:50:00Z", "productive": 1, "stays": stays}
    assert timeline(a_running_status(gpuSeconds=account))[:4] == [
        ("Waiting", "05:00:02", "05:02:00"),
        ("Earlier placements", "05:02:00", "05:06:00"),
        ("Waiting", "05:06:00", "05:14:02"),
        ("Starting", "05:14:02", "05:15:40"),
    ]


@settings(deadline=None)
@given(st.lists(st.integers(0, 6000), min_size=1, max_size=8, unique=True), st.data())
def test_spans_never_overlap_and_leave_no_gap(offsets: list[int], data: st.DataObject) -> None:
    incidents = [
        an_incident(
            faultAt=f"2026-11-21T{5 + at // 3600:02d}:{at // 60 % 60:02d}:{at % 60:02d}Z",
            restoreMilliseconds=data.draw(st.integers(0, 2_000_000)),
        )
        for at in sorted(offsets, reverse=True)
    ]
    status = a_running_status(lastIncident=incidents[0], earlierIncidents=incidents[1:])
    spans = a_report(a_manifest(status=status)).timeline
    assert [s.begins_at for s in spans[1:]] == [s.ends_at for s in spans[:-1]]
    assert all(span.ends_at > span.begins_at for span in spans)
