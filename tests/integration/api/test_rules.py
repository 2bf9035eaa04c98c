"""The rules over a whole spec refuse the same specs in CEL and in Python, in the same sentences."""

from __future__ import annotations

import random
from typing import Any, Final

import pytest

from drumline_api.load import ApiError, parse
from drumline_api.spec_rules import RULES_OF_THE_SPEC, broken_rules
from drumline_api.trainingjob import TrainingJobSpec
from tests.integration.api.conftest import Server
from tests.integration.api.manifests import Json

SEED: Final = 20
SPECS: Final = 180
RESOURCES: Final = (
    *({"cpu": 4}, {"memory": "1.5Gi"}, {"hugepages-2Mi": "1Gi"}, {"rdma/hca": 1}),
    *({"cpu": "0.0"}, {"memory": "0Gi", "cpu": "0.5m"}, {"ram": 1}, {"pods": 1}),
    *({"memory": 64}, {"memory": "1048575"}, {"memory": "1.048576M"}, {"memory": "1024Ki"}),
    *({"kubernetes.io/x": 1}, {"a.kubernetes.io/x": 1}, {"akubernetes.io/x": 1}),
    *({"nvidia.com/mig-1g.5gb": 1}, {"example.com/gpu": 1}, {"nvidia.com/hostdev": 1}),
)
PATHS: Final = ("/data", "/code", "/code/", "/code/data")
_VOLUMES: Final = [{"name": "data", "emptyDir": {}}]
_CODE: Final = {"digest": f"sha256:{'a' * 64}", "configMaps": ["part"]}
_SUPERVISED: Final = {"image": "i", "command": ["train"], "launch": "PerGpu"}
TEMPLATES: Final = (
    {"image": "i"},
    {"image": "i", "volumes": _VOLUMES},
    {**_SUPERVISED, "volumes": _VOLUMES},
    {**_SUPERVISED, "volumes": _VOLUMES, "code": _CODE},
)


def generated(draw: random.Random) -> Json:
    """A spec that the schema allows: its fields are drawn without a look at each other."""
    spec: Json = {
        "queue": "research",
        "nodes": draw.choice([1, 2, 4, 6, 8, 10_000]),
        "gpusPerNode": draw.choice([1, 2, 4, 4, 8, 64]),
    }
    maybe: dict[str, tuple[float, Any]] = {
        "trainer": (0.8, _trainer(draw)),
        "template": (0.35, draw.choice(TEMPLATES)),
        "checkpoint": (0.5, {"claimName": "saves"}),
        "minNodes": (0.3, draw.choice([1, 2, 4, 9])),
        "gpuPool": (0.2, "a"),
        "gpuPools": (0.3, draw.choice([["a"], ["a", "b"], ["a", "b", "a"]])),
        "topology": (0.3, {"slices": draw.choice([_slices(2), _slices(3), _slices(2, 4)])}),
        "resources": (0.4, draw.choice(RESOURCES)),
        "roles": (0.4, [_role(draw, "launcher"), _role(draw, "ps")]),
        "recovery": (0.1, {"holdSeconds": 60}),
        "spot": (0.2, draw.choice(["Surplus", "Surplus", "Avoid"])),
    }
    spec.update({name: value for name, (share, value) in maybe.items() if draw.random() < share})
    return spec


def _trainer(draw: random.Random) -> Json:
    trainer: Json = {"globalBatchSize": draw.choice([1, 6, 16, 64, 512, 640_000])}
    if draw.random() < 0.6:
        degrees = {name: draw.choice([1, 1, 2, 3]) for name in ("tensor", "context", "pipeline")}
        replicate = draw.choice([1, 1, 2])
        mode = draw.choice(["Manual", "Manual", "Auto"])
        trainer["parallelism"] = {"mode": mode, "replicate": replicate, **degrees}
    return trainer


def _role(draw: random.Random, name: str) -> Json:
    mount = {"name": draw.choice(["data", "data", "none"]), "mountPath": draw.choice(PATHS)}
    maybe: dict[str, tuple[float, Any]] = {
        "volumeMounts": (0.4, [mount]),
        "resources": (0.4, draw.choice(RESOURCES)),
    }
    chosen = {key: value for key, (share, value) in maybe.items() if draw.random() < share}
    return {"name": name, **chosen}


def _slices(*sizes: int) -> list[Json]:
    return [{"level": f"level-{size}", "nodes": size} for size in sizes]


def broken(spec: Json) -> tuple[ApiError, ...]:
    return broken_rules(parse(TrainingJobSpec, spec, at="spec"))


DRAW = random.Random(SEED)
PARTITION: Final = {"gpuPartition": "nvidia.com/mig-1g.10gb"}
"""Of every fourth spec, without a draw: the others stay as they are."""
COMPUTE_DOMAIN: Final[Json] = {"computeDomain": {}}
"""Of every fifth, likewise."""
GENERATED = [
    {
        **generated(DRAW),
        **({} if n % 4 else PARTITION),
        **({} if n % 5 else COMPUTE_DOMAIN),
    }
    for n in range(SPECS)
]


def manifest(spec: Json) -> Json:
    return {
        "apiVersion": "drumline.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "probe"},
        "spec": spec,
    }


def test_the_policy_says_what_python_says(as_installed: Server) -> None:
    for spec in GENERATED:
        answer = as_installed.create(manifest(spec), dry_run=True)
        said = "; ".join(map(str, broken(spec)))
        assert (answer.code == 201) == (not said), (spec, said, answer.message)
        assert not said or answer.message.endswith(f": {said}"), (spec, said, answer.message)


def test_the_crd_alone_says_what_python_says(alone: Server) -> None:
    for spec in GENERATED:
        answer = alone.create(manifest(spec), dry_run=True)
        said = broken(spec)
        assert (answer.code == 201) == (not said), (spec, said, answer.message)
        for problem in said:
            message = str(problem).removeprefix(f"{problem.path}: ")
            assert problem.path in answer.message, (spec, answer.message)
            assert message in answer.message, (spec, answer.message)


@pytest.mark.parametrize("number", range(len(RULES_OF_THE_SPEC)))
def test_the_specs_break_and_keep_every_rule(number: int) -> None:
    holds = RULES_OF_THE_SPEC[number].holds
    assert holds is not None
    kept = [holds(parse(TrainingJobSpec, spec, at="spec")) for spec in GENERATED]
    assert {True, False} <= set(kept), RULES_OF_THE_SPEC[number].message
