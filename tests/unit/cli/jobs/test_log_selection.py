"""Lines of one rank, and lines around an incident."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from drumline_cli.errors import BadInput
from drumline_cli.formatting import moment
from drumline_cli.jobs.follow import LogLine
from drumline_cli.jobs.log_selection import LogSelection, selection_of
from drumline_cli.program import main
from tests.unit.cli.manifests import a_manifest, a_running_status, an_incident
from tests.unit.cli.test_program import JOB, api_server

FAULT = "2026-11-21T06:41:12Z"
NOW = 1_800_000_000.0


def chosen(job: Any, **asked: Any) -> LogSelection:
    given = {"rank": None, "around": None, "seconds": 30.0, "now": NOW, **asked}
    return selection_of(job, **given)


def a_line(text: str, *, at: str = FAULT, index: str = "0") -> LogLine:
    return LogLine(at=at, index=index, text=text)


def with_incidents() -> Any:
    earlier = an_incident(generation=2, attempt=1, faultAt="2026-11-21T05:30:00Z")
    status = a_running_status(lastIncident=an_incident(), earlierIncidents=[earlier])
    return a_manifest(status=status)


def test_nothing_asked_keeps_everything() -> None:
    assert chosen(a_manifest()) == LogSelection()
    assert LogSelection().keeps(a_line("[rank 3] x"))


def test_of_several_ranks_in_a_pod_the_tag_tells() -> None:
    selection = chosen(a_manifest(), rank=11)
    assert selection.keeps(a_line("[rank 11] loss 2", index="7"))
    assert not selection.keeps(a_line("[rank 1] loss 2"))
    assert not selection.keeps(a_line("leader of generation 3"))


def test_of_one_rank_in_a_pod_the_pod_tells() -> None:
    template = {"launch": "PerPod", "command": ["torchrun"]}
    status = a_running_status()
    status["assignment"] = {"gpuPool": "gpus", "nodes": ["a", "b", "c"], "absent": [1]}
    job = a_manifest(status=status, template=template)
    del job["spec"]["trainer"]
    selection = chosen(job, rank=1)
    assert selection.keeps(a_line("loss 2", index="2"))
    assert not selection.keeps(a_line("loss 2", index="1"))


def test_a_rank_that_the_job_has_not_is_refused() -> None:
    with pytest.raises(BadInput, match=r"--rank.*32.*ranks 0.*31"):
        chosen(a_manifest(), rank=32)


@pytest.mark.parametrize(
    ("around", "begins", "ends"),
    [
        ("incident", "2026-11-21T06:40:42Z", "2026-11-21T06:41:58.410Z"),
        ("3.0", "2026-11-21T06:40:42Z", "2026-11-21T06:41:58.410Z"),
        ("2.1", "2026-11-21T05:29:30Z", "2026-11-21T05:30:46.410Z"),
        ("2026-11-21T07:00:00Z", "2026-11-21T06:59:30Z", "2026-11-21T07:00:30Z"),
    ],
)
def test_the_period_is_the_recovery_and_what_is_around_it(
    around: str, begins: str, ends: str
) -> None:
    selection = chosen(with_incidents(), around=around)
    assert (selection.begins, selection.ends) == (moment(begins), pytest.approx(moment(ends)))
    assert selection.keeps(a_line("x", at=begins))
    assert not selection.keeps(a_line("x", at="2026-11-21T05:00:00.999999999Z"))
    assert not selection.keeps(a_line("x", at="2026-11-21T08:00:00Z"))


def test_an_incident_that_is_not_over_lasts_until_now() -> None:
    incident = an_incident()
    del incident["firstStepMilliseconds"]
    job = a_manifest(status=a_running_status(lastIncident=incident))
    assert chosen(job, around="incident", seconds=1.0).ends == NOW + 1


def test_an_incident_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(BadInput, match=r"9\.9.*3\.0.*2\.1"):
        chosen(with_incidents(), around="9.9")
    with pytest.raises(BadInput, match="the incidents of this job: none"):
        chosen(a_manifest(), around="incident")


def test_what_could_not_be_read_is_said_whatever_is_selected() -> None:
    assert chosen(with_incidents(), rank=0, around="incident").keeps(a_line("no log", at=""))


def a_pod(name: str, index: int) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"drumline.dev/index": str(index)}},
        "status": {"containerStatuses": [{"name": "trainer", "state": {"running": {}}}]},
    }


def test_logs_of_all_pods_are_merged_by_time_around_the_incident(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = "/api/v1/namespaces/team/pods"
    items = [a_pod("llama-0-g1", 0), a_pod("llama-1-g1", 1)]
    logs = {
        "llama-0-g1": [
            "2026-11-21T06:00:00.000000000Z [rank 3] long before",
            "2026-11-21T06:41:13.100000000Z [rank 3] second",
        ],
        "llama-1-g1": [
            "2026-11-21T06:41:12.900000000Z [rank 9] first",
            "2026-11-21T06:41:13.200000000Z [rank 9] third \x1b[2J",
        ],
    }
    answers: dict[str, tuple[int, Any]] = {
        JOB: (200, with_incidents()),
        pods: (200, {"kind": "PodList", "metadata": {"resourceVersion": "5"}, "items": items}),
    }
    for name, lines in logs.items():
        answers[f"{pods}/{name}/log"] = (200, "".join(f"{line}\n" for line in lines))
    with api_server(tmp_path, answers) as (config, asked):
        arguments = ("logs", "llama", "--kubeconfig", str(config), "--around", "incident")
        assert main(arguments) == 0
        assert capsys.readouterr().out.splitlines() == [
            "[1] [rank 9] first",
            "[0] [rank 3] second",
            "[1] [rank 9] third  [2J",
        ]
        assert main([*arguments, "--rank", "3"]) == 0
        assert capsys.readouterr().out == "[0] [rank 3] second\n"
    assert any("sinceTime=2026-11-21T06:40:41Z" in unquote(path) for path in asked)
    assert main([*arguments, "-f"]) == 2
