"""What was stored by an older schema is an error of one object, with its path."""

from __future__ import annotations

import pytest

from drumline_api.load import ApiError, parse
from drumline_api.trainingjob import TrainerSpec, TrainingJob, TrainingJobSpec


def test_a_stored_object_becomes_a_value_with_its_defaults() -> None:
    raw = {
        "apiVersion": "drumline.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "first"},
        "spec": {"queue": "research", "resources": {"cpu": 4}, "trainer": {"globalBatchSize": 32}},
        "status": {"phase": "Pending", "fieldOfALaterVersion": 1},
    }
    job = parse(TrainingJob, raw)
    assert job.spec.trainer == TrainerSpec(global_batch_size=32)
    assert job.spec.resources == {"cpu": "4"}
    assert (job.spec.nodes, job.spec.recovery.max_restarts) == (1, 3)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({}, "spec.queue"),
        ({"queue": "research", "gpusPerNode": 0}, "spec.gpusPerNode"),
        ({"queue": "research", "trainer": {"steps": "many"}}, "spec.trainer.steps"),
        (
            {"queue": "q", "template": {"image": "i", "env": [{"name": "A"}, {"name": "1"}]}},
            "spec.template.env[1].name",
        ),
        ({"queue": "research", "resources": {"cpu": True}}, "spec.resources.cpu"),
    ],
)
def test_the_error_has_the_path_of_the_field(spec: dict[str, object], path: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse(TrainingJob, {"spec": spec})
    assert caught.value.path == path
    assert str(caught.value).startswith(f"{path}: ")


def test_errors_in_a_part_name_its_path() -> None:
    with pytest.raises(ApiError, match=r"^spec\.queue: "):
        parse(TrainingJobSpec, {}, at="spec")
