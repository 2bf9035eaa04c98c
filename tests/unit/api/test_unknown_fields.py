"""Fields that a schema does not have."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from drumline_api.trainingjob import TrainingJobSpec
from drumline_api.unknown_fields import unknown_fields

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").rglob("*.yaml"))


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"queu": "a"}, ["spec.queu: unknown field; did you mean queue?"]),
        ({"trainer": {"Steps": 1}}, ["spec.trainer.Steps: unknown field; did you mean steps?"]),
        ({"gpus": 8}, ["spec.gpus: unknown field; did you mean gpusPerNode?"]),
        (
            {"image": 1},
            ["spec.image: unknown field; did you mean trainer.image or template.image?"],
        ),
        ({"comand": []}, ["spec.comand: unknown field; did you mean template.command?"]),
        ({"priority": 1}, ["spec.priority: unknown field; did you mean priorityClassName?"]),
        ({"trainer": {"overrides": {"anything": {"goes": 1}}}}, []),
        ({"resources": {"cpu": 4, "example.com/card": 1}}, []),
        ({"trainer": "a text"}, []),
    ],
)
def test_each_is_named_with_the_nearest(raw: dict[str, object], says: list[str]) -> None:
    assert [str(each) for each in unknown_fields(TrainingJobSpec, raw, at="spec")] == says


def test_lists_are_looked_into() -> None:
    raw = {"template": {"env": [{"name": "A", "valeu": "b"}]}}
    (problem,) = unknown_fields(TrainingJobSpec, raw, at="spec")
    assert problem.path == "spec.template.env[0].valeu"


def test_what_resembles_nothing_gets_all_there_are() -> None:
    (problem,) = unknown_fields(TrainingJobSpec, {"zzz": 1}, at="spec")
    assert "; there are queue, " in str(problem)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_no_example_has_one(file: Path) -> None:
    for document in yaml.safe_load_all(file.read_text()):
        if document and document.get("kind") == "TrainingJob":
            assert not list(unknown_fields(TrainingJobSpec, document["spec"], at="spec"))
