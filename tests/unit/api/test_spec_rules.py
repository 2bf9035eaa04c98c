"""The rules over a whole spec in Python; tests/integration/api holds them against the CEL."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from drumline_api.base import Rule
from drumline_api.load import ApiError, parse
from drumline_api.spec_rules import RULES_OF_THE_SPEC, broken_name, broken_rules
from drumline_api.trainingjob import TrainingJob, TrainingJobSpec
from tests.integration.api.bad_specs import Bad, bad_specs
from tests.integration.api.test_good_specs import ACCEPTED, EXAMPLES
from tests.texts import missing


def spec_of(body: dict[str, Any]) -> TrainingJobSpec | None:
    """The spec of a manifest; None where the schema refuses it already."""
    try:
        return parse(TrainingJobSpec, body["spec"], at="spec")
    except ApiError:
        return None


BAD = [
    (bad, spec)
    for bad in bad_specs("TrainingJob", "TemplateJob")
    if (spec := spec_of(bad.body)) is not None
]
GOOD = {
    **ACCEPTED,
    **{
        f"{path.stem}-{number}": document
        for path in EXAMPLES
        for number, document in enumerate(yaml.safe_load_all(path.read_text()))
    },
}


def sentence(rule: Rule, spec: TrainingJobSpec) -> str:
    return rule.message if rule.explain is None else rule.explain(spec)


def test_every_rule_over_the_spec_that_a_new_object_must_hold_has_its_python() -> None:
    new = [rule for rule in TrainingJobSpec.rules if "oldSelf" not in rule.rule]
    assert new == list(RULES_OF_THE_SPEC)
    rules = [*new, *(rule for rule in TrainingJob.rules if "oldSelf" not in rule.rule)]
    for rule in rules:
        assert rule.holds is not None, rule.message
        assert (rule.explain is None) == (rule.message_expression is None), rule.message


@pytest.mark.parametrize("number", range(len(RULES_OF_THE_SPEC)))
def test_every_rule_refuses_a_bad_spec_with_its_field_and_the_fix(number: int) -> None:
    rule = RULES_OF_THE_SPEC[number]
    assert any(
        (complaint := rule.complaint(spec, at="spec")) is not None
        and complaint[0] == bad.field
        and bad.fix in complaint[1]
        for bad, spec in BAD
    ), rule.message


@pytest.mark.parametrize(("bad", "spec"), BAD, ids=lambda value: getattr(value, "why", ""))
def test_a_bad_spec_is_refused_in_the_sentence_of_its_rule(bad: Bad, spec: TrainingJobSpec) -> None:
    due = [
        rule
        for rule in RULES_OF_THE_SPEC
        if f"spec{rule.field_path or ''}" == bad.field and bad.fix in sentence(rule, spec)
    ]
    said = [
        problem
        for problem in broken_rules(spec)
        if problem.path == bad.field and bad.fix in str(problem)
    ]
    assert len(said) == len(due)


@pytest.mark.parametrize("why", GOOD)
def test_a_good_spec_breaks_no_rule(why: str) -> None:
    body = GOOD[why]
    if body["kind"] == "TrainingJob":
        assert broken_rules(parse(TrainingJobSpec, body["spec"], at="spec")) == ()
        assert broken_name(body["metadata"]["name"]) is None


def test_all_that_is_wrong_is_said_at_once_with_its_figures() -> None:
    raw: dict[str, Any] = {"queue": "q", "nodes": 3, "gpusPerNode": 2, "minNodes": 4, "trainer": {}}
    least, needs, batch = map(str, broken_rules(TrainingJobSpec.model_validate(raw)))
    assert not missing(least, "spec.minNodes", "nodes")
    assert not missing(needs, "spec.minNodes", "checkpoint", "template")
    assert not missing(batch, "spec.trainer.globalBatchSize", "16", "6 ranks", "18")


@pytest.mark.parametrize("name", ["a" * 51, "llama-3.1"])
def test_a_name_that_is_no_part_of_a_pods_name_is_refused(name: str) -> None:
    problem = broken_name(name)
    assert problem is not None
    assert problem.path == "metadata.name"
    assert not missing(str(problem), "metadata.name", "50 characters")
