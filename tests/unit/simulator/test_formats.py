"""Each sample is written by hand after the documentation of its data set."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drumline_simulator.input.errors import InvalidFileError
from drumline_simulator.input.formats import Format, read_as
from drumline_simulator.input.trace import TraceJob

HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
11,uA,vcX,16,64,2,COMPLETED,1970-01-01 00:01:40,1970-01-01 00:02:00,1970-01-01 00:12:00,600,20
12,uB,vcY,0,16,1,FAILED,1970-01-01 00:01:41,1970-01-01 00:02:00,1970-01-01 00:12:00,600,19
13,uB,vcY,4,16,1,CANCELLED,1970-01-01 00:01:42,1970-01-01 00:01:42,1970-01-01 00:01:42,0,0
"""
ACME = """\
job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue
5,u9,1,8,128,Other,FAILED,1970-01-01 08:00:30+08:00,,,117,32
6,u9,1,0,128,CPU,COMPLETED,1970-01-01 08:00:31+08:00,,,10,0
dl,u7,3,64,960,Pretrain,CANCELLED,1970-01-01 00:00:40+00:00,,,,
dm,u7,3,64,960,Pretrain,CANCELLED,1970-01-01 00:00:40+00:00,,,82.5,12.0
"""
ALIBABA_2020 = """\
job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type
j1,tensorflow,1.0,Terminated,1739162.0,1739200.0,600.0,29.296875,50.0,MISC
j2,worker,4.0,Terminated,1739163.0,1739263.0,600.0,29.2,200.0,V100
j2,ps,1.0,Terminated,1739163.0,1739263.0,600.0,29.2,,
j3,worker,1.0,Running,1739163.0,,600.0,29.2,100.0,V100
"""
ALIBABA_2023 = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
pod-1,88000,327680,8,1000,,Burstable,Succeeded,9437497,9437597,9437507
pod-2,4000,15258,1,220,,BE,Running,9679175,9973826,9679175
pod-3,4000,15258,0,0,,LS,Running,9679175,9973826,9679175
pod-4,4000,15258,1,1000,,LS,Pending,9679175,9973826,
"""
PHILLY: list[dict[str, Any]] = [
    {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": "application_1",
        "attempts": [
            {
                "start_time": "1970-01-01 00:01:00",
                "end_time": "1970-01-01 00:02:00",
                "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}],
            },
            {
                "start_time": "1970-01-01 00:03:00",
                "end_time": "1970-01-01 00:04:30",
                "detail": [{"ip": "m1", "gpus": ["gpu0"]}, {"ip": "m2", "gpus": ["gpu3"]}],
            },
            {"start_time": "1970-01-01 00:05:00", "end_time": "None", "detail": []},
        ],
        "submitted_time": "1970-01-01 00:00:50",
        "user": "ce2f4c",
    },
    {
        "status": "Killed",
        "vc": "ee9e8c",
        "jobid": "application_2",
        "attempts": [],
        "submitted_time": "1970-01-01 00:00:51",
        "user": "ce2f4c",
    },
]


def jobs(kind: Format, text: str) -> list[TraceJob]:
    return list(read_as(kind, text.splitlines(keepends=True), file="f"))


def a_job(line: int | None, name: str, **fields: Any) -> TraceJob:
    return TraceJob(line=line, name=name, **fields)


def test_helios() -> None:
    assert jobs(Format.HELIOS, HELIOS) == [
        a_job(
            2,
            "11",
            submit_seconds=100,
            gpus=16,
            duration_seconds=600,
            user="uA",
            queue="vcX",
            nodes=2,
        )
    ]


def test_acme() -> None:
    assert jobs(Format.ACME, ACME) == [
        a_job(
            2,
            "5",
            submit_seconds=30,
            gpus=8,
            duration_seconds=117,
            user="u9",
            queue="Other",
            nodes=1,
        ),
        a_job(
            5,
            "dm",
            submit_seconds=40,
            gpus=64,
            duration_seconds=82.5,
            user="u7",
            queue="Pretrain",
        ),
    ]


def test_alibaba_2020_rounds_parts_of_a_gpu_up() -> None:
    assert jobs(Format.ALIBABA_2020, ALIBABA_2020) == [
        a_job(
            2,
            "j1-tensorflow",
            submit_seconds=1739162,
            gpus=1,
            duration_seconds=38,
            user="j1",
            queue="MISC",
            nodes=1,
        ),
        a_job(
            3,
            "j2-worker",
            submit_seconds=1739163,
            gpus=8,
            duration_seconds=100,
            user="j2",
            queue="V100",
            nodes=4,
        ),
    ]


def test_alibaba_2023_leaves_out_what_has_no_gpu_or_never_ran() -> None:
    pods = jobs(Format.ALIBABA_2023, ALIBABA_2023)
    assert [(pod.name, pod.gpus, pod.submit_seconds, pod.duration_seconds) for pod in pods] == [
        ("pod-1", 8, 9437497, 90),
        ("pod-2", 1, 9679175, 294651),
    ]


def test_philly_adds_up_the_attempts_that_have_times() -> None:
    assert jobs(Format.PHILLY, json.dumps(PHILLY)) == [
        a_job(
            None,
            "application_1",
            submit_seconds=50,
            gpus=2,
            duration_seconds=150,
            user="ce2f4c",
            queue="ee9e8c",
            nodes=2,
        )
    ]


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (Format.HELIOS, HELIOS.replace("gpu_num", "gpus"), "f, line 1, field gpu_num: this col"),
        (Format.HELIOS, HELIOS.replace("16,64,2", "x,64,2"), "f, line 2, field gpu_num: must be"),
        (Format.HELIOS, HELIOS.replace("1970-01-01 00:01:40", "today"), "f, line 2, field submit"),
        (Format.ACME, ACME.replace("82.5", "-1"), "f, line 5, field duration: must not be nega"),
        (Format.ACME, ACME.replace("Other,FAILED", "Other"), "f, line 2: has 11 cells, the head"),
        (Format.ALIBABA_2020, ALIBABA_2020.replace("4.0", "0"), "f, line 3, field inst_num: mus"),
        (Format.ALIBABA_2023, ALIBABA_2023.replace(",8,", ",a,"), "f, line 2, field num_gpu: mu"),
        (Format.PHILLY, "[{]", "f, line 1: no JSON"),
        (Format.PHILLY, "{}", "f, line 1: must be a list of jobs"),
        (Format.PHILLY, "[1]", "f, job 1: must be an object"),
        (Format.PHILLY, '[{"jobid": "a"}]', "f, job 1, field submitted_time: is missing"),
    ],
)
def test_errors_name_the_line_and_the_field(kind: Format, text: str, message: str) -> None:
    with pytest.raises(InvalidFileError) as caught:
        jobs(kind, text)
    assert str(caught.value).startswith(message)
