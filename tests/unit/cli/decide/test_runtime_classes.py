"""RuntimeClasses of pools: overhead, nodes and tolerations count before the first pod exists."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.property.scale import many
from tests.texts import missing
from tests.unit.cli.decide.test_command import (
    a_job,
    a_node,
    a_pool,
    a_queue,
    verdicts,
    written,
)

Json = dict[str, Any]
POOL = a_pool()
POOL["spec"]["podProfile"] = {"runtimeClassName": "kata"}


def a_class(**fields: Json) -> Json:
    return {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "kata"},
        "handler": "kata",
        **fields,
    }


def labelled(name: str, *, taints: list[Json] | None = None, **labels: str) -> Json:
    node = a_node(name)
    node["metadata"]["labels"] |= labels
    return {**node, "spec": {"taints": taints or []}}


def decided(
    folder: Path, capsys: pytest.CaptureFixture[str], *objects: Json, **spec: object
) -> Json:
    job = a_job("waits", **spec)
    return verdicts(capsys, "-f", written(folder, POOL, a_queue(64), *objects, job))["team/waits"]


def test_a_node_without_the_labels_of_the_class_is_not_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = (labelled("n1"), labelled("n2", sandboxed="true"))
    asked = a_class(scheduling={"nodeSelector": {"sandboxed": "true"}})
    assert decided(tmp_path, capsys, *nodes, asked)["nodes"] == ["n2"]
    row = decided(tmp_path, capsys, nodes[0], asked)
    assert row["reason"] == "NodesUnavailable"
    assert not missing(row["message"], "runtime class", "kata")


def test_the_overhead_of_the_class_takes_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = labelled("n1")
    cpu = int(node["status"]["allocatable"]["cpu"])
    whole = {"resources": {"cpu": str(cpu)}}
    assert decided(tmp_path, capsys, node, a_class(), **whole)["verdict"] == "Placed"
    heavy = a_class(overhead={"podFixed": {"cpu": "250m"}})
    assert decided(tmp_path, capsys, node, heavy, **whole)["reason"] == "ExceedsCluster"


@pytest.mark.parametrize("seed", range(many(6, 100)))
def test_the_nodes_are_those_that_kube_scheduler_would_allow(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The oracle: all labels of the class, and each taint tolerated by the class or by the job."""
    dice = Random(seed)
    selector = {key: "1" for key in "ab" if dice.random() < 0.4}
    tolerations = [
        {"key": key, "operator": dice.choice(["Exists", "Equal"]), "value": "1", "effect": effect}
        for key, effect in product("xy", ["NoSchedule", "NoExecute"])
        if dice.random() < 0.4
    ]
    for each in tolerations:
        if each["operator"] == "Exists":
            del each["value"]
    given, own = tolerations[::2], tolerations[1::2]
    nodes = [
        labelled(
            f"n{index}",
            taints=[
                {"key": key, "value": dice.choice("12"), "effect": effect}
                for key, effect in product("xy", ["NoSchedule", "NoExecute"])
                if dice.random() < 0.3
            ],
            **{key: dice.choice("12") for key in "ab" if dice.random() < 0.7},
        )
        for index in range(5)
    ]

    def allowed(node: Json) -> bool:
        labels = node["metadata"]["labels"]
        return all(labels.get(key) == value for key, value in selector.items()) and all(
            any(
                toleration["key"] == taint["key"]
                and toleration["effect"] == taint["effect"]
                and toleration.get("value", taint["value"]) == taint["value"]
                for toleration in tolerations
            )
            for taint in node["spec"]["taints"]
        )

    asked = a_class(scheduling={"nodeSelector": selector, "tolerations": given})
    expected = {node["metadata"]["name"] for node in nodes if allowed(node)}
    row = decided(tmp_path, capsys, *nodes, asked, nodes=max(1, len(expected)), tolerations=own)
    assert set(row.get("nodes") or ()) == expected
