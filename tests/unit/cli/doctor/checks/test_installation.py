from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from drumline_cli.doctor.checks.installation import (
    GROUPS,
    OLDEST,
    custom_resources,
    kubernetes,
    operator,
    priorities,
)
from drumline_cli.doctor.facts import (
    LeaseFact,
    OperatorFact,
    PriorityFact,
    SchemaFact,
    ServerVersion,
    Unread,
)
from drumline_cli.doctor.results import CheckFailed, Passed, Undecided, Warned
from tests.unit.cli.doctor.facts import an_operator

ROOT = Path(__file__).parents[5]


def test_the_oldest_version_is_the_charts() -> None:
    chart = yaml.safe_load((ROOT / "helm/drumline/Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={OLDEST[0]}.{OLDEST[1]}.0-0"


def test_an_old_server_and_a_group_that_is_switched_off_fail() -> None:
    old = ServerVersion(major=1, minor=32, text="v1.32.9")
    served = frozenset(GROUPS) - {"policy/v1"}
    too_old, switched_off = kubernetes(old, served)
    assert isinstance(too_old, CheckFailed)
    assert "v1.32.9 is older than 1.33" in too_old.message
    assert isinstance(switched_off, CheckFailed)
    assert "policy/v1" in switched_off.message


def test_fields_that_one_side_lacks_are_named() -> None:
    expected = {
        "A": frozenset({"spec", "spec.new"}),
        "B": frozenset({"spec"}),
        "C": frozenset({"spec"}),
    }
    schemas = (
        SchemaFact(kind="A", fields=frozenset({"spec"})),
        SchemaFact(kind="B", fields=frozenset({"spec", "spec.newer"})),
    )
    older, newer, absent = custom_resources(schemas, expected)
    assert isinstance(older, CheckFailed)
    assert "A lacks spec.new:" in older.message
    assert isinstance(newer, Warned)
    assert "B has spec.newer" in newer.message
    assert isinstance(absent, CheckFailed)
    assert "C is not installed" in absent.message


def test_before_the_installation_nothing_fails() -> None:
    (resources,) = custom_resources((), {"A": frozenset({"spec"})})
    (process,) = operator(None)
    (classes,) = priorities((), None)
    assert isinstance(resources, Warned)
    assert isinstance(process, Warned)
    assert "helm upgrade --install" in resources.fix
    assert isinstance(classes, Passed)


def test_a_namespace_without_the_operator_is_named() -> None:
    (alone,) = operator(None, (), "training")
    (beside,) = operator(None, (SchemaFact(kind="A", fields=frozenset()),), "training")
    assert isinstance(alone, Warned)
    assert isinstance(beside, Warned)
    for result in (alone, beside):
        assert result.message == "the operator is not installed in namespace training"
        assert result.fix.endswith("-n training --create-namespace")
    assert "--system-namespace" not in alone.fix
    assert "--system-namespace" in beside.fix


@pytest.mark.parametrize(
    ("installed", "words"),
    [
        (replace(an_operator(), ready_replicas=0), "none of 2 replicas is ready"),
        (replace(an_operator(), lease=None), "no process holds the Lease"),
        (
            replace(
                an_operator(),
                lease=LeaseFact(holder="gone", renewed_ago_seconds=300, duration_seconds=15),
            ),
            "gone holds the Lease drumline-operator but last renewed it 5 min ago",
        ),
    ],
)
def test_an_operator_that_does_not_lead_fails(installed: OperatorFact, words: str) -> None:
    (result,) = operator(installed)
    assert isinstance(result, CheckFailed)
    assert words in result.message


def test_a_lease_that_may_not_be_read_decides_nothing() -> None:
    (result,) = operator(replace(an_operator(), lease=Unread(reason="forbidden")))
    assert isinstance(result, Undecided)


def test_a_class_that_preempts_training_pods_is_named_and_the_systems_are_not() -> None:
    ours = PriorityFact(name="drumline-training-pods", value=100, preempts=False)
    classes = (
        ours,
        PriorityFact(name="web", value=200, preempts=True),
        PriorityFact(name="patient", value=200, preempts=False),
        PriorityFact(name="low", value=50, preempts=True),
        PriorityFact(name="system-node-critical", value=2 * 10**9, preempts=True),
    )
    (result,) = priorities(classes, an_operator())
    assert isinstance(result, Warned)
    assert "pods of web can" in result.message
    (missing,) = priorities(classes[1:], an_operator())
    assert isinstance(missing, CheckFailed)
