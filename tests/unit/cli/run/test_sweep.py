"""One job for each combination of parameters."""

from __future__ import annotations

import pytest

from drumline_api.trainingjob import TrainingJobSpec
from drumline_cli.errors import BadInput
from drumline_cli.run.manifests import RunRequest, job_manifest
from drumline_cli.run.sweep import sweep_requests

REQUEST = RunRequest(
    name="train",
    namespace="team",
    queue="research",
    image="any:1",
    nodes=1,
    gpus=8,
    command=("python", "train.py", "--lr={lr}", "{seed}{seed}", "{other}"),
    launch="PerGpu",
    env=(("RATE", "{lr}"),),
)


def test_every_combination_is_a_job_with_the_values_in_its_command() -> None:
    made = sweep_requests(REQUEST, ["lr=1e-4,3e-4", "seed=0,1"], max_parallel=2)
    assert [(each.name, each.parameters) for each in made] == [
        ("train-0", "lr=1e-4 seed=0"),
        ("train-1", "lr=1e-4 seed=1"),
        ("train-2", "lr=3e-4 seed=0"),
        ("train-3", "lr=3e-4 seed=1"),
    ]
    assert made[1].command == ("python", "train.py", "--lr=1e-4", "11", "{other}")
    assert made[3].env == (("RATE", "3e-4"),)
    manifest = job_manifest(made[0], None)
    spec = TrainingJobSpec.model_validate(manifest["spec"])
    assert spec.sweep is not None
    assert (spec.sweep.name, spec.sweep.max_parallel) == ("train", 2)
    assert manifest["metadata"]["labels"] == {"drumline.dev/sweep": "train"}
    assert manifest["metadata"]["annotations"] == {"drumline.dev/parameters": "lr=1e-4 seed=0"}


def test_without_a_limit_all_run_at_once() -> None:
    first, *_ = sweep_requests(REQUEST, ["lr=1,2,3"], max_parallel=None)
    assert first.options["sweep"] == {"name": "train", "maxParallel": 3}


def test_without_parameters_it_is_the_job_itself() -> None:
    assert sweep_requests(REQUEST, [], max_parallel=None) == [REQUEST]


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        (["lr"], "--sweep lr: want NAME=VALUE,VALUE"),
        (["lr=1,"], "--sweep lr=1,: want NAME=VALUE,VALUE"),
        (["a-b=1"], "--sweep a-b=1: want NAME=VALUE,VALUE"),
        (["lr=1", "lr=2"], "--sweep lr is given twice"),
        (["lr=1,2,1"], "a value is repeated"),
        (["width=1"], "--sweep width: write {width} in the command to use its value"),
        (["lr=" + ",".join(map(str, range(300)))], "300 combinations exceed the maximum of 256"),
        ([], "--max-parallel needs --sweep"),
    ],
)
def test_what_is_wrong_is_a_sentence(parameters: list[str], sentence: str) -> None:
    with pytest.raises(BadInput) as refused:
        sweep_requests(REQUEST, parameters, max_parallel=1)
    assert sentence in str(refused.value)
