"""What all models of the API have in common."""

from __future__ import annotations

from drumline_api.load import parse
from drumline_api.trainingjob import TrainingJobSpec


def test_models_that_were_given_the_same_fields_share_the_set_of_them() -> None:
    """pydantic keeps up to 728 bytes with each model: tens of megabytes with 10,000 jobs."""
    specs = [parse(TrainingJobSpec, {"queue": "q", "nodes": count}) for count in (2, 3)]
    assert specs[0].model_fields_set is specs[1].model_fields_set
    changed = specs[0].model_copy(update={"suspend": True})
    assert changed.model_fields_set == {"queue", "nodes", "suspend"}
    assert specs[1].model_fields_set == {"queue", "nodes"}
