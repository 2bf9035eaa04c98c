"""What is checked in is what the models say, and says enough to `kubectl explain`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from drumline.kube import kinds as resources
from drumline.lifecycle.manifests.environment import launcher_variables
from drumline.lifecycle.model.job import Job
from drumline_api import crds
from drumline_api.base import GROUP, VERSION
from drumline_api.manifest_yaml import HEADER, write_files
from drumline_api.trainingjob import (
    MODEL_OF_FOLDER,
    MODEL_OF_TRANSFORMERS,
    TrainingJobSpec,
    TrainingJobStatus,
)
from drumline_api.variables import RESERVED_ENV
from drumline_contract.config import MODEL_PRESETS

ROOT = Path(__file__).parents[3]


def test_checked_in_files_are_what_the_models_say(tmp_path: Path) -> None:
    write_files(crds.generated(), root=tmp_path)
    for folder in (crds.ALONE, crds.CHART, crds.POLICIES):
        there, written = (
            {path.name: path.read_text() for path in (root / folder).glob("*.yaml")}
            for root in (ROOT, tmp_path)
        )
        assert there == written, "make generate"


def described(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for name, below in schema.get("properties", {}).items():
        yield f"{path}.{name}", below.get("description", "")
        yield from described(below, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from described(schema[key], path)


@pytest.mark.parametrize("definition", crds.DEFINITIONS, ids=lambda definition: definition.kind)
def test_every_field_is_described(definition: crds.Definition) -> None:
    (version,) = definition.manifest()["spec"]["versions"]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    fields = {half: properties[half] for half in ("spec", "status")}
    bare = [path for path, text in described({"properties": fields}, "") if len(text) < 8]
    assert bare == []


def test_models_offered_are_the_presets_of_the_trainer() -> None:
    job = crds.DEFINITIONS[0].manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    trainer = job["properties"]["spec"]["properties"]["trainer"]["properties"]
    assert trainer["model"]["enum"] == [*MODEL_PRESETS, MODEL_OF_FOLDER, MODEL_OF_TRANSFORMERS]


def test_the_client_names_the_kinds_as_the_crds_do() -> None:
    for definition, resource in zip(
        crds.DEFINITIONS,
        (resources.TRAINING_JOBS, resources.TRAINING_QUEUES, resources.GPU_POOLS),
        strict=True,
    ):
        assert resource.api_version == f"{GROUP}/{VERSION}"
        assert (resource.kind, resource.plural) == (definition.kind, definition.plural)
        assert resource.namespaced == (definition.scope == "Namespaced")


def test_files_are_yaml_without_anchors() -> None:
    generated = crds.generated()
    for definition in crds.DEFINITIONS:
        text = generated[f"{crds.ALONE}/{definition.file_name}"]
        assert yaml.safe_load(text) == definition.manifest()
        assert text.startswith(HEADER)
        assert "&id" not in text


def test_every_launch_variable_is_reserved() -> None:
    assert len(set(RESERVED_ENV)) == len(RESERVED_ENV)
    for nodes, gpus in ((1, 1), (2, 1), (2, 2)):
        job = Job(
            namespace="team",
            name="job",
            uid="u",
            resource_version="1",
            object_generation=1,
            created_at=0.0,
            spec=TrainingJobSpec(queue="q", nodes=nodes, gpus_per_node=gpus),
            status=TrainingJobStatus(),
        )
        assert set(launcher_variables(job, index=0)) <= set(RESERVED_ENV)
