"""Objects are read as the API has them, and what is none is counted."""

from __future__ import annotations

import json
from types import UnionType
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from pydantic import BaseModel

from drumline.api.gpupool import GpuPool
from drumline.api.trainingjob import TrainingJob
from drumline.api.trainingqueue import TrainingQueue
from drumline.overview.objects import JobObject, QueueObject, decoded, seconds
from drumline.overview.pool_objects import PoolObject
from tests.unit.overview.objects import NOW, a_job, at


def structs_in(hint: Any) -> list[Any]:
    inside = [each for argument in get_args(hint) for each in structs_in(argument)]
    return (
        [hint, *inside] if isinstance(hint, type) and issubclass(hint, msgspec.Struct) else inside
    )


def models_in(hint: Any) -> list[Any]:
    inside = [each for argument in get_args(hint) for each in models_in(argument)]
    if isinstance(hint, type) and not isinstance(hint, UnionType) and issubclass(hint, BaseModel):
        return [hint]
    return inside


def unknown_fields(kind: Any, model: Any) -> list[str]:
    """Fields that are read and that the API does not have."""
    unknown: list[str] = []
    hints = get_type_hints(kind)
    for field in msgspec.structs.fields(kind):
        if field.encode_name == "metadata":
            continue
        known = model.model_fields.get(field.name)
        if known is None:
            unknown.append(f"{kind.__name__}.{field.name}")
        for inner in structs_in(hints[field.name]):
            (of_api,) = models_in(known.annotation)
            unknown += unknown_fields(inner, of_api)
    return unknown


@pytest.mark.parametrize(
    ("kind", "model"),
    [(JobObject, TrainingJob), (QueueObject, TrainingQueue), (PoolObject, GpuPool)],
)
def test_every_field_that_is_read_is_one_of_the_api(kind: Any, model: Any) -> None:
    assert unknown_fields(kind, model) == []


def test_one_object_that_is_none_costs_no_other() -> None:
    raws = [json.dumps(a_job("good")).encode(), b'{"metadata": 3}', b"[" * 100_000]
    read = decoded(raws, JobObject)
    assert [job.key for job in read.objects] == ["team/good"]
    assert read.unreadable == 2


def test_times_of_the_api_are_seconds_and_no_time_is_none() -> None:
    assert seconds(at(5)) == NOW + 5
    assert seconds("yesterday") is None
    assert seconds(None) is None
    assert seconds("2027-01-15T08:00:00") == NOW
