"""Local validation answers as the API server does.

The same tables run against a real API server in tests/integration/api.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from drumline_cli.errors import BadInput
from drumline_cli.validation import check, refusals
from tests.integration.api.bad_specs import Bad, bad_specs
from tests.integration.api.manifests import manifest
from tests.integration.api.test_good_specs import ACCEPTED

ROOT = Path(__file__).parents[4]
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))


@pytest.mark.extended(keep=20)
@pytest.mark.parametrize("bad", bad_specs(), ids=lambda bad: bad.why.replace(" ", "-"))
def test_a_bad_object_is_refused_in_the_words_of_the_server(bad: Bad) -> None:
    texts = [str(refusal) for refusal in refusals(bad.body)]
    assert any(bad.field in text and bad.fix in text for text in texts), texts


@pytest.mark.parametrize("case", ACCEPTED)
def test_an_object_near_a_limit_is_accepted(case: str) -> None:
    before = copy.deepcopy(ACCEPTED[case])
    assert refusals(ACCEPTED[case]) == []
    assert ACCEPTED[case] == before


def test_a_whole_number_with_a_fraction_of_zero_passes_the_rules() -> None:
    assert refusals(manifest("TrainingJob", nodes=2.0, gpusPerNode=8.0)) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_accepted(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        assert refusals(document or {}) == []


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"apiVersion": "drumline.dev/v1"}, "apiVersion", "v1alpha1"),
        ({"kind": "TrainingJobs"}, "kind", "did you mean TrainingJob?"),
        ({"metadata": {"name": "größe"}}, "metadata.name", "lower case"),
        ({"metadata": {}}, "metadata.name", "name or generateName is required"),
        ({"metadata": {"generateName": "A-"}}, "metadata.name", "lower case"),
        ({"metadata": {"name": "a", "lables": {}}}, "metadata.lables", "did you mean labels?"),
        ({"metadata": {"name": "a", "labels": {"b": "c d"}}}, "metadata.labels", "'c d'"),
        ({"metadata": {"name": "a", "labels": {"b/": "c"}}}, "metadata.labels", "'b/'"),
        ({"metadata": {"name": "a", "labels": {"b": "c" * 64}}}, "metadata.labels", "63 letters"),
        ({"metadata": {"name": "a", "annotations": {"B/c/d": ""}}}, "metadata.annotations", "63"),
        ({"metadata": {"name": "a", "labels": {"b": 1}}}, "metadata.labels", "quotes"),
        ({"metadata": {"name": "a", "namespace": "A"}}, "metadata.namespace", "Invalid"),
        ({"spek": {}}, "spek", "unknown field"),
        ({"spec": None}, "spec", "Required value"),
        ({"spec": []}, "spec", "type object"),
        ({"spec": {"queue": "q", "trainer": {}, "nodes": "1"}}, "spec.nodes", "type integer"),
        ({"spec": {"queue": "q", "trainer": {}, "nodes": True}}, "spec.nodes", "type integer"),
        ({"spec": {"queue": "q", "trainer": {}, "nodes": 1.5}}, "spec.nodes", "type integer"),
    ],
)
def test_what_surrounds_a_spec_is_judged_too(
    changes: dict[str, Any], path: str, words: str
) -> None:
    (refusal,) = refusals({**manifest("TrainingJob"), **changes})
    assert (refusal.path, words in refusal.problem) == (path, True)
    with pytest.raises(BadInput):
        check({**manifest("TrainingJob"), **changes})


def test_labels_and_a_generated_name_are_accepted() -> None:
    labels = {"a": "", "example.com/B_c": "D.e"}
    metadata = {"generateName": "a-", "labels": labels, "annotations": {"a": "any text"}}
    assert refusals({**manifest("TrainingJob"), "metadata": metadata}) == []


def test_a_refusal_of_a_whole_object_begins_with_its_problem() -> None:
    (refusal,) = refusals({**manifest("TrainingJob"), "metadata": {"name": "a" * 60}})
    assert str(refusal).startswith("metadata.name: ")


def test_objects_of_others_are_not_judged() -> None:
    assert refusals({"apiVersion": "v1", "kind": "Pod", "spec": {"nodez": 1}}) == []
    assert refusals({}) == []
