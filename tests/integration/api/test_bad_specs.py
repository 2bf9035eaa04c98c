"""Bad specs are refused by the API server, with a message that names the field and the fix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from drumline_api.crds import DEFINITIONS, Definition
from tests.integration.api.bad_specs import Bad, bad_specs
from tests.integration.api.conftest import Server

TABLE = bad_specs()


@pytest.fixture(scope="module", params=["policy", "alone"])
def server(request: pytest.FixtureRequest, as_installed: Server, alone: Server) -> Server:
    """The rules over the whole spec, once in the policy and once in the CRD."""
    return {"policy": as_installed, "alone": alone}[request.param]


@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.why.replace(" ", "-"))
def test_a_bad_spec_is_refused_with_its_field_and_the_fix(server: Server, bad: Bad) -> None:
    answer = server.create(bad.body, dry_run=True)
    assert answer.code in {400, 422}, answer
    assert bad.field in answer.message
    assert bad.fix in answer.message


def test_the_table_is_long_enough_and_its_cases_are_distinct() -> None:
    assert len({bad.why for bad in TABLE}) == len(TABLE) >= 60


def rules(node: Any) -> Iterator[dict[str, str]]:
    """Every CEL rule below this part of a CRD that is checked on creation."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    if not isinstance(node, dict):
        return
    for rule in node.get("x-kubernetes-validations", []):
        if "oldSelf" not in rule["rule"]:
            yield rule
    for below in node.values():
        yield from rules(below)


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.kind)
def test_every_rule_refuses_something_in_the_table(definition: Definition) -> None:
    said = [bad.fix for bad in TABLE]
    silent = [
        rule["message"]
        for rule in rules(definition.manifest())
        if "messageExpression" not in rule and not any(fix in rule["message"] for fix in said)
    ]
    assert silent == []
