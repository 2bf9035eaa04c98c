"""The policy over a job's whole spec has the rules that its CRD in the chart has not."""

from __future__ import annotations

from typing import Any

from drumline_api.crds import DEFINITIONS
from drumline_api.spec_policy import spec_policy
from drumline_api.trainingjob import TrainingJob, TrainingJobSpec

JOB = DEFINITIONS[0]
RULES = (*TrainingJob.rules, *TrainingJobSpec.rules)


def schema(*, has_policy: bool) -> dict[str, Any]:
    (version,) = JOB.manifest(has_policy=has_policy)["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]


def whole(node: dict[str, Any]) -> list[dict[str, Any]]:
    """The rules of the whole object and of the whole spec."""
    key = "x-kubernetes-validations"
    return [*node.get(key, []), *node["properties"]["spec"].get(key, [])]


def test_a_rule_is_in_the_crd_or_in_the_policy() -> None:
    assert whole(schema(has_policy=True)) == []
    assert [rule["rule"] for rule in whole(schema(has_policy=False))] == [
        rule.rule for rule in RULES
    ]
    (variable,) = spec_policy()[0]["spec"]["variables"]
    assert variable["expression"].count("? '' : ") >= len(RULES)
    for rule in RULES:
        if rule.message_expression is None:
            assert rule.message in variable["expression"].replace('\\"', '"')


def test_no_word_of_a_crd_is_left_in_the_policy() -> None:
    (variable,) = spec_policy()[0]["spec"]["variables"]
    assert "self" not in variable["expression"]
    assert "oldSelf" not in variable["expression"]


def test_a_failing_policy_denies_and_status_writes_are_not_asked_about() -> None:
    policy, binding = spec_policy()
    assert policy["spec"]["failurePolicy"] == "Fail"
    (matched,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert matched["resources"] == [JOB.plural]
    assert binding["spec"] == {
        "policyName": policy["metadata"]["name"],
        "validationActions": ["Deny"],
    }
