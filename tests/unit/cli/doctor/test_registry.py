from __future__ import annotations

from dataclasses import fields

import pytest

from drumline_cli.doctor.facts import ClusterFacts, Unread
from drumline_cli.doctor.registry import CHECKS, examine
from drumline_cli.doctor.results import Passed, Undecided
from tests.unit.cli.doctor.facts import a_cluster

READ = [
    field.name for field in fields(ClusterFacts) if field.name not in {"groups", "expected_fields"}
]


def test_a_cluster_that_is_well_passes_every_check() -> None:
    findings = examine(a_cluster())
    assert {finding.check for finding in findings} == CHECKS.keys()
    assert [finding for finding in findings if not isinstance(finding.result, Passed)] == []


@pytest.mark.parametrize("name", READ)
def test_what_may_not_be_read_is_said_and_hides_no_other_check(name: str) -> None:
    findings = examine(a_cluster(**{name: Unread(reason=f"{name}: not allowed")}))
    assert {finding.check for finding in findings} == CHECKS.keys()
    unknown = [finding.result for finding in findings if not isinstance(finding.result, Passed)]
    assert unknown
    assert {result.message for result in unknown if isinstance(result, Undecided)} == {
        f"{name}: not allowed"
    }
    assert len(unknown) < len(CHECKS)
