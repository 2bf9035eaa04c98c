"""What an agent may say, and what the operator reads of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from drumline_contract import (
    MAX_CAUSE_CHARS,
    MAX_SILENT,
    MAX_SLOW,
    AgentPhase,
    AgentStatus,
    ContractError,
    FaultClass,
    FinalReport,
    Incident,
    Progress,
    Remark,
    RemarkKind,
    SilentMember,
    SlowMember,
    StepPart,
    StepPartSeconds,
    plain,
)

STATUS = AgentStatus(
    job_uid="job",
    pod_uid="pod",
    index=0,
    generation=1,
    attempt=0,
    phase=AgentPhase.RUNNING,
    progress=Progress(step=7, total_steps=10, loss=1.5, tokens_per_second=1e6, seconds_left=9.5),
)


def said(**progress: Any) -> bytes:
    """A status with other figures, as any JSON encoder would write it."""
    raw = json.loads(STATUS.encode())
    return json.dumps({**raw, "progress": {**raw["progress"], **progress}}).encode()


def test_what_is_encoded_is_read_back() -> None:
    waiting = replace(STATUS, waiting_for="no space left on device")
    remark = Remark(kind=RemarkKind.RANKS_ENDED, sentence="some ranks have ended")
    for status in (STATUS, waiting, replace(STATUS, remark=remark)):
        assert AgentStatus.parse(status.encode()) == status


def test_a_remark_of_a_newer_agent_is_none() -> None:
    raw = json.loads(STATUS.encode())
    raw["remark"] = {"kind": "OfTomorrow", "sentence": "all is well"}
    assert AgentStatus.parse(json.dumps(raw).encode()) == STATUS


@pytest.mark.parametrize("remark", ["text", [], {"kind": 1, "sentence": ""}, {"sentence": 2}])
def test_a_remark_of_another_type_is_refused(remark: object) -> None:
    raw = json.loads(STATUS.encode())
    raw["remark"] = remark
    with pytest.raises(ContractError):
        AgentStatus.parse(json.dumps(raw).encode())


def test_slow_members_are_read_and_an_older_agent_has_none() -> None:
    slow = tuple(SlowMember(index=index, percent=20, steps=40) for index in range(MAX_SLOW))
    assert AgentStatus.parse(replace(STATUS, slow=slow).encode()).slow == slow
    raw = json.loads(STATUS.encode())
    del raw["slow"]
    assert AgentStatus.parse(json.dumps(raw).encode()) == STATUS
    raw["slow"] = [{"index": 0, "percent": 20, "steps": 40}] * (MAX_SLOW + 1)
    with pytest.raises(ContractError):
        AgentStatus.parse(json.dumps(raw).encode())


def test_a_field_that_an_older_agent_does_not_know_is_empty() -> None:
    raw = json.loads(STATUS.encode())
    del raw["waiting_for"]
    assert AgentStatus.parse(json.dumps(raw).encode()) == STATUS


def test_a_field_of_a_newer_agent_is_passed_over() -> None:
    raw = {**json.loads(STATUS.encode()), "mood": "good"}
    assert AgentStatus.parse(json.dumps(raw).encode()) == STATUS


@pytest.mark.parametrize(("letter", "kept"), [("\U0001f600", 16), ("\x01", 12)])
def test_however_long_the_causes_a_status_can_be_read(letter: str, kept: int) -> None:
    """What a program says when it fails is anything; who is silent must be known all the same."""
    incidents = tuple(
        Incident(
            generation=1,
            attempt=attempt,
            fault_class=FaultClass.APPLICATION,
            cause=letter * MAX_CAUSE_CHARS,
            fault_at=1.0,
            detected_at=2.0,
        )
        for attempt in range(16)
    )
    silent = tuple(SilentMember(index=index, seconds=1234.56) for index in range(MAX_SILENT))
    status = AgentStatus.parse(replace(STATUS, incidents=incidents, silent=silent).encode())
    kept_whole = [replace(incident, cause=plain(incident.cause)) for incident in incidents]
    assert (status.silent, list(status.incidents)) == (silent, kept_whole[-len(status.incidents) :])
    assert len(status.incidents) >= kept


@pytest.mark.parametrize("field", ["loss", "tokens_per_second"])
@pytest.mark.parametrize(
    ("value", "read"),
    [
        (1e15, 1e15),
        (-1e15, -1e15),
        (7, 7.0),
        (1.1e15, None),
        (-1e300, None),
        (10**400, None),
        (float("inf"), None),
        (float("nan"), None),
    ],
)
def test_a_figure_that_cannot_be_a_measurement_is_none(
    field: str, value: float, read: float | None
) -> None:
    assert getattr(AgentStatus.parse(said(**{field: value})).progress, field) == read


def test_step_parts_are_read_back_and_what_is_none_is_passed_over() -> None:
    parts = (
        StepPartSeconds(part=StepPart.COMPUTE, measured=1.5, predicted=1.25),
        StepPartSeconds(part=StepPart.DATA, measured=0.5, predicted=0.25),
    )
    status = replace(STATUS, progress=replace(STATUS.progress, step_parts=parts))
    assert AgentStatus.parse(status.encode()) == status
    figures = {"measured": 1.0, "predicted": 2.0}
    odd = [{"part": "of-a-newer-agent", **figures}, {"part": "data", **figures, "measured": None}]
    assert AgentStatus.parse(said(step_parts=odd)).progress.step_parts == ()
    assert AgentStatus.parse(said(step_parts=2 * odd[:1])).progress.step_parts == ()
    with pytest.raises(ContractError, match=r"step_parts.*8"):
        AgentStatus.parse(said(step_parts=9 * odd[:1]))


@pytest.mark.parametrize("step", [(1 << 53) + 1, -1, 1.0, True, "7"])
def test_a_step_outside_of_what_json_keeps_exactly_is_refused(step: object) -> None:
    with pytest.raises(ContractError, match="step: must be an integer"):
        AgentStatus.parse(said(step=step))


def test_half_a_character_is_replaced_wherever_text_is_read() -> None:
    digest = AgentStatus.parse(said(checkpoint_digest="a\ud800b")).progress.checkpoint_digest
    report = FinalReport.parse(b'{"progress": {"step": 1, "total_steps": 2}, "error": "\\udfff!"}')

    assert (digest, report.error) == ("a?b", "?!")
    assert (digest + report.error).encode() == b"a?b?!"


def test_an_agent_s_words_steer_no_terminal() -> None:
    evil = "\x1b[2J\u202eevil\nnew line"
    incident = Incident(
        generation=1,
        attempt=0,
        fault_class=FaultClass.APPLICATION,
        cause=evil,
        fault_at=1.0,
        detected_at=2.0,
    )
    status = AgentStatus.parse(replace(STATUS, incidents=(incident,)).encode())
    assert status.incidents[0].cause == "[2J evil new line"
    report = FinalReport(progress=STATUS.progress, error=evil)
    assert FinalReport.parse(report.encode()).error == "[2J evil new line"


def test_a_final_report_says_how_long_the_pod_was_held_and_an_older_one_does_not() -> None:
    report = FinalReport(progress=STATUS.progress, error="x", held_seconds=600.0)
    assert FinalReport.parse(report.encode()) == report
    raw = json.loads(report.encode())
    del raw["held_seconds"]
    older = FinalReport.parse(json.dumps(raw).encode())
    assert older == replace(report, held_seconds=0.0)


def test_a_series_is_bounded_and_gives_way_to_the_error_of_a_final_report() -> None:
    series = "step,loss\n" + "".join(f"{step},1.5\n" for step in range(370))
    progress = replace(STATUS.progress, series=series)
    assert AgentStatus.parse(replace(STATUS, progress=progress).encode()).progress.series == series
    short = FinalReport(progress=progress, error="x")
    assert FinalReport.parse(short.encode()) == short
    long = FinalReport(progress=progress, error="y" * 1024)
    whole = FinalReport.parse(long.encode())
    assert (whole.error, whole.progress.series) == (long.error, "")
    with pytest.raises(ContractError, match="4096"):
        AgentStatus.parse(said(series="1" * 4097))


def test_compute_times_give_way_to_the_series_and_an_older_agent_has_none() -> None:
    progress = replace(STATUS.progress, series="1" * 2500, compute_by_rank="2" * 2048)
    assert AgentStatus.parse(replace(STATUS, progress=progress).encode()).progress == progress
    final = FinalReport(progress=replace(progress, answers="3" * 7000), error="x")
    assert FinalReport.parse(final.encode()).progress == replace(progress, compute_by_rank="")
    raw = json.loads(STATUS.encode())
    del raw["progress"]["compute_by_rank"]
    del raw["progress"]["answers"]
    assert AgentStatus.parse(json.dumps(raw).encode()) == STATUS
    with pytest.raises(ContractError, match=r"compute_by_rank.*2048"):
        AgentStatus.parse(said(compute_by_rank="2" * 2049))
    with pytest.raises(ContractError, match=r"answers.*7000"):
        AgentStatus.parse(said(answers="3" * 7001))
