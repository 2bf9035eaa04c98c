from __future__ import annotations

import json

from drumline_cli.doctor.command import render
from drumline_cli.doctor.facts import NodeClock
from drumline_cli.doctor.json_output import as_json
from drumline_cli.doctor.registry import examine
from drumline_cli.doctor.results import CheckFailed, Finding, Passed, Undecided, Warned
from tests.texts import Golden, missing
from tests.unit.cli.doctor.facts import a_cluster, a_node

FINDINGS = [
    Finding(check="Clocks", result=Passed(message="4 nodes agree")),
    Finding(
        check="GPUs", result=CheckFailed(message="n\x1b[2J1 has none", fix="install the plugin")
    ),
    Finding(check="Queues", result=Warned(message="open", fix="close it")),
    Finding(check="Pools", result=Undecided(message="forbidden", fix="ask")),
]


def test_a_line_each_and_what_to_do_below_what_is_not_well() -> None:
    assert not missing(render(FINDINGS, colours=False), "4 nodes", "FAIL", "GPUs", "2J1", "1")


def test_the_problems_of_a_cluster_are_shown_with_remedies(golden: Golden) -> None:
    clock = NodeClock(node="gpu-0", ahead_seconds=-12.0)
    site = a_cluster(nodes=(a_node(), a_node("gpu-17", gpus=0)), clocks=(clock,))
    shown = [each for each in examine(site) if each.check in {"Kubernetes", "Pools", "Clocks"}]
    golden("doctor.txt", render(shown, colours=False))


def test_programs_get_the_same_as_rows() -> None:
    rows = json.loads(as_json(FINDINGS))["findings"]
    assert rows[0] == {"check": "Clocks", "verdict": "ok", "message": "4 nodes agree"}
    assert [row["verdict"] for row in rows] == ["ok", "failed", "warning", "unknown"]
    assert rows[1]["fix"] == "install the plugin"
