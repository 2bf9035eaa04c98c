"""What a check printed, and what its pool says from then on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drumline_api.load import parse
from drumline_api.nodehealth import NodeHealthSpec
from drumline_cli.check_nodes.results import CheckResult, node_health, results_in, table
from drumline_cli.errors import NotAnswered
from drumline_trainer.node_check.verdicts import MemberVerdict, NodeCheck
from tests.texts import Golden

NOW = "2026-11-25T23:00:00Z"
FIGURES = (400.0, 2000.0, 40.0, 41.0)
PASSED = CheckResult(node="n0", failed="", figures=FIGURES)
FAILED = CheckResult(node="n1", failed="matmul 61 % of the median", figures=FIGURES)


def member(index: int, failed: str = "") -> MemberVerdict:
    return MemberVerdict(
        index=index, failed=failed, matmul_tflops=400.0, memory_gbps=2000.0, pair_gbps=(40.0, 41.0)
    )


def test_the_trainers_line_is_read_among_others() -> None:
    check = NodeCheck(members=(member(0), member(1, FAILED.failed)), links=())
    lines = ["[rank 1] {}", f"[rank 0] {check.encode()}", "agent_finished"]
    assert results_in(lines, nodes=("n0", "n1")) == (PASSED, FAILED)


def test_of_several_results_none_is_believed() -> None:
    lines = [NodeCheck(members=(member(0, failed),), links=()).encode() for failed in ("", "slow")]
    with pytest.raises(NotAnswered, match="2 results instead of one"):
        results_in(lines, nodes=("n0",))


@pytest.mark.parametrize(
    "line",
    [
        "nothing",
        '{"nodeCheck":1,"members":7}',
        '{"nodeCheck":1,"members":[{"index":9}]}',
        '{"nodeCheck":1,',
    ],
)
def test_what_is_no_result_is_an_answer_in_words(line: str) -> None:
    with pytest.raises(NotAnswered, match="result"):
        results_in([line], nodes=("n0",))


def test_failed_nodes_and_suspects_that_passed_are_written_and_the_rest_stays() -> None:
    before = {
        "quarantinePercent": 10,
        "checked": [
            {"node": "n1", "at": "2026-11-25T10:00:00Z"},
            {"node": "n7", "at": "2026-11-25T10:00:00Z", "failed": "memory gives wrong results"},
        ],
    }
    suspect = CheckResult(node="n2", failed="", figures=FIGURES)
    after = node_health(before, (PASSED, FAILED, suspect), suspects=["n2"], at=NOW)
    assert after == {
        "quarantinePercent": 10,
        "checked": [
            before["checked"][1],  # pyright: ignore[reportIndexIssue] - it is a list
            {"node": "n1", "at": NOW, "failed": FAILED.failed},
            {"node": "n2", "at": NOW},
        ],
    }
    parse(NodeHealthSpec, after)


def test_the_pool_keeps_the_newest_sixty_four() -> None:
    many = [CheckResult(node=f"n{i}", failed="slow", figures=FIGURES) for i in range(70)]
    old: dict[str, Any] = {"checked": [{"node": "old", "at": "2026-11-01T00:00:00Z"}]}
    after = node_health(old, many, suspects=(), at=NOW)
    assert len(after["checked"]) == 64
    assert "old" not in json.dumps(after)


def test_each_node_has_a_line(golden: Golden) -> None:
    text = table((PASSED, FAILED))
    golden("check-nodes.txt", text)
    assert text.splitlines()[1].split() == ["n0", "400", "2000", "40,", "41", "passed"]
    assert text.splitlines()[2].endswith("matmul 61 % of the median")
