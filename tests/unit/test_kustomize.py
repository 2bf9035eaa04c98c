"""The kustomize base: what the chart installs, and what an overlay of the documents makes of it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from drumline.settings import from_environment
from tools.cluster.binaries import ensure_binaries
from tools.generate import kustomize_base

ROOT = Path(__file__).parents[2]
BASE = ROOT / "kustomize"

Json = dict[str, Any]
Build = Callable[[Path], list[Json]]


@pytest.fixture(scope="module")
def build() -> Build:
    """What `kubectl kustomize` makes of a folder."""
    kubectl = ensure_binaries(["kubectl"], say=print)["kubectl"]

    def run(folder: Path) -> list[Json]:
        done = subprocess.run(
            [kubectl, "kustomize", folder], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return list(yaml.safe_load_all(done.stdout))

    return run


def by_name(objects: list[Json]) -> dict[tuple[str, str], Json]:
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def deployed(objects: list[Json]) -> dict[str, str]:
    """The operator's image, and what it hands on."""
    deployment = by_name(objects)["Deployment", "drumline-operator"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    settings = from_environment(
        {each["name"]: each["value"] for each in container["env"] if "value" in each}
    )
    return {
        "image": container["image"],
        "operator": settings.operator_image,
        "trainer": settings.trainer_image,
    }


def test_the_base_is_the_chart_with_its_defaults() -> None:
    assert kustomize_base.FILE.read_text() == kustomize_base.text(), "run `make generate`"


def test_the_base_builds_with_crds_and_a_namespace_and_nothing_of_helm(build: Build) -> None:
    objects = build(BASE)
    names = by_name(objects)
    chart = by_name(list(yaml.safe_load_all(kustomize_base.FILE.read_text())))
    crds = {
        ("CustomResourceDefinition", f"{plural}.drumline.dev")
        for plural in ("gpupools", "trainingjobs", "trainingqueues")
    }
    assert names.keys() == chart.keys() | crds | {("Namespace", "drumline-system")}
    assert not [each for each in objects if "helm.sh/" in yaml.safe_dump(each["metadata"])]


def test_the_overlay_of_the_documents_changes_all_images(build: Build, tmp_path: Path) -> None:
    page = (ROOT / "docs/gitops.md").read_text()
    (overlay,) = re.findall(r"```yml\n(# kustomization\.yaml\n.*?)```", page, re.DOTALL)
    link = tmp_path / "drumline"
    for part in ("kustomize", "crds"):
        (link / part).mkdir(parents=True)
        for path in (ROOT / part).iterdir():
            (link / part / path.name).write_text(path.read_text())
    (tmp_path / "kustomization.yaml").write_text(overlay)
    assert deployed(build(tmp_path)) == {
        "image": "registry.example.com/drumline/operator:0.1.0",
        "operator": "registry.example.com/drumline/operator:0.1.0",
        "trainer": "registry.example.com/drumline/trainer:0.1.0",
    }
