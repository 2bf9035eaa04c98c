"""What all models of the API have in common."""

from __future__ import annotations

import re

import pytest

from drumline_api.crds import DEFINITIONS
from drumline_api.load import ApiError, parse
from drumline_api.trainingjob import TrainingJobSpec
from drumline_api.trainingqueue import QueueOverride

# The API server's format `date-time` accepts all of these.
TIMES = [
    "2026-11-30T12:00:00Z",
    "2026-11-30T12:00:00+23:59",
    "2026-11-30T12:00:00.123456789Z",
    "9999-12-31T23:59:59-23:00",
    "2026-11-30t12:00:00z",
    "2026-11-30T12:00:00+25:00",
    "2026-11-30T12:00:00-23:60",
    "2026-11-30T12:00:00x5Z",
    "0000-01-01T00:00:00Z",
]


def test_models_that_were_given_the_same_fields_share_the_set_of_them() -> None:
    """pydantic keeps up to 728 bytes with each model: tens of megabytes with 10,000 jobs."""
    specs = [parse(TrainingJobSpec, {"queue": "q", "nodes": count}) for count in (2, 3)]
    assert specs[0].model_fields_set is specs[1].model_fields_set
    changed = specs[0].model_copy(update={"suspend": True})
    assert changed.model_fields_set == {"queue", "nodes", "suspend"}
    assert specs[1].model_fields_set == {"queue", "nodes"}


@pytest.mark.parametrize("time", TIMES)
def test_a_time_that_the_schema_allows_can_be_read(time: str) -> None:
    queue = next(each for each in DEFINITIONS if each.kind == "TrainingQueue").manifest()
    schema = queue["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    of_override = schema["properties"]["spec"]["properties"]["overrides"]["items"]
    allowed = re.search(of_override["properties"]["until"]["pattern"], time) is not None
    document = {"job": "a/b", "until": time, "grantedBy": "jane", "reason": "launch"}
    try:
        parse(QueueOverride, document)
    except ApiError:
        assert not allowed
    else:
        assert allowed
