"""Which nodes are open to a gang: the default scheduler's checks, which are ours here."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest

from drumline_scheduler import (
    BlockReason,
    Node,
    NodeOperator,
    NodeRequirement,
    Taint,
    TaintEffect,
    Toleration,
    TolerationOperator,
)
from drumline_scheduler.placement.eligibility import (
    NODE_NAME,
    Ineligibility,
    LabelTable,
    node_filter_of,
)
from tests.texts import missing
from tests.unit.scheduler.builders import cluster, gang, node, run

NO_SCHEDULE, NO_EXECUTE = TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE
EXISTS = TolerationOperator.EXISTS
SPOT = Taint(key="spot", value="yes", effect=NO_SCHEDULE)


@pytest.mark.parametrize(
    ("node_a", "why"),
    [
        (node("n"), None),
        (node("n", ready=False), Ineligibility.NOT_READY),
        (node("n", unschedulable=True), Ineligibility.CORDONED),
        (node("n", distrusted=True), Ineligibility.DISTRUSTED),
        (node("n", closed="maintenance"), Ineligibility.CLOSED),
        (node("n", quarantined=True), Ineligibility.QUARANTINED),
        (node("bad"), Ineligibility.EXCLUDED),
        (node("n", taints=(SPOT,)), Ineligibility.TAINT),
        (node("n", taints=(replace(SPOT, effect=NO_EXECUTE),)), Ineligibility.TAINT),
        (node("n", taints=(replace(SPOT, effect=TaintEffect.PREFER_NO_SCHEDULE),)), None),
        (node("n", shares_gpus=True), Ineligibility.SHARED),
        (node("n", ready=False, unschedulable=True, taints=(SPOT,)), Ineligibility.NOT_READY),
    ],
)
def test_a_node_is_closed_for_the_first_reason_that_applies(
    node_a: Node, why: Ineligibility | None
) -> None:
    assert node_filter_of(gang("a", excluded_nodes=frozenset({"bad"}))).ineligibility(node_a) is why


@pytest.mark.parametrize(
    ("labels", "open_"),
    [({}, False), ({"zone": "a"}, False), ({"zone": "b", "gpu": "h100"}, True)],
)
def test_every_label_of_the_selector_must_have_its_value(
    labels: dict[str, str], open_: bool
) -> None:
    gang_a = gang("a", selector={"zone": "b", "gpu": "h100"})
    assert (node_filter_of(gang_a).ineligibility(node("n", labels=labels)) is None) is open_


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (Toleration(key="spot", value="yes"), True),
        (Toleration(key="spot", value="yes", effect=NO_SCHEDULE), True),
        (Toleration(key="spot", value="yes", effect=NO_EXECUTE), False),
        (Toleration(key="spot", value="no"), False),
        (Toleration(key="spot"), False),
        (Toleration(key="spot", operator=EXISTS), True),
        (Toleration(key="other", operator=EXISTS), False),
        (Toleration(operator=EXISTS), True),
        (Toleration(operator=EXISTS, effect=NO_EXECUTE), False),
    ],
)
def test_a_toleration_covers_a_taint_as_in_kubernetes(
    toleration: Toleration, tolerated: bool
) -> None:
    assert toleration.tolerates(SPOT) is tolerated
    gang_a = gang("a", tolerations=(toleration,))
    assert (node_filter_of(gang_a).ineligibility(node("n", taints=(SPOT,))) is None) is tolerated


def decimal(text: str) -> int | None:
    """Parse as IsDecimalInteger and ParseInt of Kubernetes do."""
    digits = text.removeprefix("-")
    canonical = digits.isascii() and digits.isdecimal() and str(int(text)) == text
    return int(text) if canonical and -(2**63) <= int(text) < 2**63 else None


def covers(toleration: Toleration, taint: Taint) -> bool:
    """Transcribe ToleratesTaint (core/v1)."""
    if toleration.effect not in (None, taint.effect):
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in ("Equal", "Exists"):
        return toleration.operator == "Exists" or toleration.value == taint.value
    mine, its = decimal(toleration.value), decimal(taint.value)
    if mine is None or its is None:
        return False
    return its < mine if toleration.operator == "Lt" else its > mine


NUMBERS = (
    "",
    "0",
    "-0",
    "7",
    "07",
    "+7",
    "-7",
    "8",
    "x",
    "7_0",
    "\u0667",
    str(2**63 - 1),
    str(2**63),
)


@pytest.mark.parametrize("operator", TolerationOperator)
def test_tolerations_cover_the_taints_that_they_cover_in_kubernetes(
    operator: TolerationOperator,
) -> None:
    keys, effects = ("spot", "other"), (None, NO_SCHEDULE, NO_EXECUTE)
    for key, effect, value, own in product(keys, effects, NUMBERS, NUMBERS):
        toleration = Toleration(key=key, operator=operator, value=value, effect=effect)
        taint = replace(SPOT, value=own)
        assert toleration.tolerates(taint) is covers(toleration, taint), (toleration, taint)


def test_every_taint_needs_a_toleration() -> None:
    other = Taint(key="other", effect=NO_SCHEDULE)
    gang_a = gang("a", tolerations=(Toleration(key="spot", operator=EXISTS),))
    assert (
        node_filter_of(gang_a).ineligibility(node("n", taints=(SPOT, other))) is Ineligibility.TAINT
    )


def test_no_toleration_overrides_a_cordon() -> None:
    gang_a = gang("a", tolerations=(Toleration(operator=EXISTS),))
    assert (
        node_filter_of(gang_a).ineligibility(node("n", unschedulable=True))
        is Ineligibility.CORDONED
    )


@pytest.mark.parametrize(
    ("operator", "values", "open_to"),
    [
        (NodeOperator.IN, ("a", "b"), {"a"}),
        (NodeOperator.NOT_IN, ("a",), {"7", "none"}),
        (NodeOperator.EXISTS, (), {"a", "7"}),
        (NodeOperator.DOES_NOT_EXIST, (), {"none"}),
        (NodeOperator.GREATER_THAN, ("6",), {"7"}),
        (NodeOperator.GREATER_THAN, ("7",), set[str]()),
        (NodeOperator.LESS_THAN, ("8",), {"7"}),
        (NodeOperator.LESS_THAN, ("x",), set[str]()),
        (NodeOperator.GREATER_THAN, ("1_0",), set[str]()),
        (NodeOperator.LESS_THAN, ("٩",), set[str]()),
        (NodeOperator.LESS_THAN, (" 8",), set[str]()),
        (NodeOperator.LESS_THAN, (str(2**63 - 1),), {"7"}),
        (NodeOperator.LESS_THAN, (str(2**63),), set[str]()),
        (NodeOperator.GREATER_THAN, ("9" * 5000,), set[str]()),
    ],
)
def test_a_required_affinity_compares_labels_as_kubernetes_does(
    operator: NodeOperator, values: tuple[str, ...], open_to: set[str]
) -> None:
    nodes = [node("a", labels={"k": "a"}), node("7", labels={"k": "7"}), node("none")]
    term = (NodeRequirement(key="k", operator=operator, values=values),)
    node_filter = node_filter_of(gang("g", affinity=(term,)))
    assert {
        each_node.name for each_node in nodes if node_filter.ineligibility(each_node) is None
    } == open_to
    assert node_filter.eligible(nodes) == [each_node.name in open_to for each_node in nodes]


@pytest.mark.parametrize("seed", range(40))
def test_a_table_of_labels_gives_the_reasons_of_single_nodes(seed: int) -> None:
    dice = Random(seed)
    names, values = ["a", "b", "c"], ["", "x", "7", "07", "-3", "12", "n1", "1_2"]

    def labels() -> dict[str, str]:
        return {name: dice.choice(values) for name in dice.sample(names, dice.randint(0, 3))}

    def requirement() -> NodeRequirement:
        operator = dice.choice(list(NodeOperator))
        some = tuple(dice.choices(values, k=dice.randint(0, 3)))
        key = dice.choice([*names, "none", NODE_NAME])
        return NodeRequirement(key=key, operator=operator, values=some)

    nodes = [
        node(f"n{i}", labels=labels(), ready=dice.random() < 0.8, taints=dice.choice([(), (SPOT,)]))
        for i in range(dice.randint(0, 9))
    ]
    asked = gang(
        "g",
        selector=labels() if dice.random() < 0.3 else {},
        affinity=tuple(
            tuple(requirement() for _ in range(dice.randint(0, 3)))
            for _ in range(dice.randint(0, 3))
        ),
        excluded_nodes=frozenset(dice.sample(["n0", "n1"], dice.randint(0, 1))),
    )
    node_filter, table = node_filter_of(asked), LabelTable(nodes)
    alone = [node_filter.ineligibility(each) for each in nodes]
    known = node_filter.labelled(table)
    assert alone == [
        node_filter.ineligibility(each, labels=known, ordinal=i) for i, each in enumerate(nodes)
    ]
    assert node_filter.eligible(nodes, table=table) == [why is None for why in alone]


@pytest.mark.parametrize(
    ("operator", "allowed"),
    [(NodeOperator.IN, [True, False]), (NodeOperator.NOT_IN, [False, True])],
)
def test_a_requirement_may_name_a_node(operator: NodeOperator, allowed: list[bool]) -> None:
    requirement = NodeRequirement(key=NODE_NAME, operator=operator, values=("a",))
    named = node_filter_of(gang("g", affinity=((requirement,),)))
    assert named.eligible([node("a"), node("b", labels={"name": "a"})]) == allowed


def test_one_term_of_an_affinity_is_enough_and_all_its_requirements_are_needed() -> None:
    fast = NodeRequirement(key="fast", operator=NodeOperator.EXISTS)
    near = NodeRequirement(key="near", operator=NodeOperator.EXISTS)
    nodes = [node("f", labels={"fast": ""}), node("fn", labels={"fast": "", "near": ""})]
    both = node_filter_of(gang("g", affinity=((fast, near),)))
    either = node_filter_of(gang("g", affinity=((near,), (fast,))))
    assert both.eligible(nodes) == [False, True]
    assert either.eligible(nodes) == [True, True]
    assert both.ineligibility(nodes[0]) is Ineligibility.AFFINITY
    assert node_filter_of(gang("g", affinity=((),))).eligible(nodes) == [False, False]


def test_ranks_of_a_gang_never_meet_on_a_shared_gpu() -> None:
    snapshot = cluster(node("sliced", "r", gpus=8, shares_gpus=True), node("whole", "r", gpus=2))
    pair, wide = gang("pair", gpus=2), gang("wide", nodes=3)
    alone = gang("alone", may_share=True, at=1.0)
    where = {each.key: set(each.assignment) for each in run(snapshot, alone, pair).placed}
    assert where == {alone.key: {"sliced"}, pair.key: {"whole"}}
    (blocked,) = run(snapshot, wide).blocked
    assert blocked.reason is BlockReason.NODES_UNAVAILABLE
    assert "1 with shared GPUs, on which two ranks of a job could share a GPU" in blocked.message


def test_gpus_that_no_resource_counts_are_named_where_nothing_fits() -> None:
    bare = (node(f"n{i}", "r", gpus=0, hides_gpus=True) for i in range(2))
    (blocked,) = run(cluster(*bare), gang("a")).blocked
    assert blocked.reason is BlockReason.RESOURCE_NOT_OFFERED
    assert not missing(blocked.message, "GPUs", "2 nodes", "DRA")
    assert "add nodes" not in blocked.message
