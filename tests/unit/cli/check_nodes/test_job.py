"""Which nodes are checked, and by what job."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.overview.rows import NodeRow
from drumline_api.load import parse
from drumline_api.trainingjob import TrainingJob
from drumline_cli.check_nodes.job import MOST_NODES, check_job, nodes_to_check
from drumline_cli.errors import BadInput, NotAnswered


def row(node: str, **changes: Any) -> NodeRow:
    fields: dict[str, Any] = {"pool": "h100", "domains": (), "gpus": 8, "held_gpus": 0}
    return NodeRow(node=node, **{**fields, "state": "Ready", **changes})


def names(rows: list[NodeRow], *wanted: str) -> list[str]:
    return [each.node for each in nodes_to_check(rows, pool="h100", names=wanted)]


def test_idle_nodes_of_the_pool_are_checked_and_suspect_ones_first() -> None:
    rows = [
        row("busy", held_gpus=1),
        row("cordoned", state="Cordoned"),
        row("good"),
        row("out", state="Quarantined", why="Slow"),
        row("promised", promised_to=("team/a",)),
        row("small", gpus=4),
        row("suspect", why="Slow"),
        row("other", pool="a100"),
    ]
    assert names(rows) == ["out", "suspect", "good"]
    assert names(rows, "busy") == ["busy"]
    with pytest.raises(BadInput, match=r"'other'.*'h100'"):
        names(rows, "other")
    with pytest.raises(NotAnswered, match="'h100'"):
        names(rows[:2])
    with pytest.raises(NotAnswered, match="no pool 'h100' has nodes; pools with nodes: a100"):
        names(rows[-1:])


def test_the_job_has_a_pod_with_all_gpus_on_each_node_whatever_is_known_against_it() -> None:
    nodes = [row(f"n{i}") for i in range(MOST_NODES)]
    manifest = check_job("check-a", nodes, queue="q", image="i:1", device="cpu")
    spec = parse(TrainingJob, manifest).spec
    assert (spec.nodes, spec.gpus_per_node, spec.gpu_pool) == (MOST_NODES, 8, "h100")
    assert spec.template is not None
    assert (spec.template.command or [])[-3:] == ["check-nodes", "--device", "cpu"]
    assert spec.node_affinity is not None
    listed = [
        value
        for term in spec.node_affinity.required
        for expression in term.match_expressions
        for value in expression.values or ()
    ]
    assert listed == [node.node for node in nodes]
    assert [each.key for each in spec.tolerations or ()] == ["drumline.dev/quarantined"]
