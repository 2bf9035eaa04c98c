"""What the chart renders against the schemas of each minor of Kubernetes, by kubeconform.

An API server says what it accepts; this says what it would have overlooked, and knows kinds that
the tests' server has not: the Prometheus operator's.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.json_schemas import LOCATION, Json, Schemas
from tools.cluster.binaries import KUBERNETES_VERSIONS, ensure_binaries

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm/drumline"
VALUES = {
    "default": (),
    "production": (f"--values={CHART / 'values-production.yaml'}",),
    "everything": (
        f"--values={CHART / 'tests/everything.yaml'}",
        "--api-versions=security.openshift.io/v1",
    ),
    "namespaces": ("--set=watchNamespaces={nlp,vision}", "--set=installation=research"),
}

*OLDER, NEWEST = KUBERNETES_VERSIONS
MINORS = (NEWEST, *(pytest.param(minor, marks=pytest.mark.extended) for minor in OLDER))
Conform = Callable[[list[Json]], Json]


@pytest.fixture(scope="module")
def rendered() -> dict[str, list[Json]]:
    """The chart's objects, those of `helm test` included, by the name of their values."""
    helm = ensure_binaries(["helm"], say=print)["helm"]
    command = [helm, "template", "drumline", CHART, "--namespace=drumline-system"]
    command += [f"--values={CHART / 'tests/images.yaml'}"]
    objects: dict[str, list[Json]] = {}
    for name, values in VALUES.items():
        done = subprocess.run([*command, *values], check=True, capture_output=True, text=True)
        objects[name] = [each for each in yaml.safe_load_all(done.stdout) if each]
    return objects


@pytest.fixture(scope="module", params=MINORS)
def conform(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Conform:
    """What kubeconform says about objects under one minor: a summary, and what does not hold."""
    program = ensure_binaries(["kubeconform"], say=print)["kubeconform"]
    version, folder = KUBERNETES_VERSIONS[request.param], tmp_path_factory.mktemp(request.param)
    crds = [yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml")]
    schemas = Schemas(version, crds=crds)
    options = ("-strict", "-summary", "-output=json", f"-schema-location={folder}/{LOCATION}")

    def run(objects: list[Json]) -> Json:
        schemas.write(((each["apiVersion"], each["kind"]) for each in objects), folder)
        done = subprocess.run(
            [program, *options, f"-kubernetes-version={version}"],
            input="\n---\n".join(map(json.dumps, objects)),
            capture_output=True,
            text=True,
            check=False,
        )
        return json.loads(done.stdout)

    return run


def test_every_manifest_conforms(rendered: dict[str, list[Json]], conform: Conform) -> None:
    objects = [each for some in rendered.values() for each in some]
    said = conform(objects)
    assert said["resources"] == []
    assert said["summary"] == {"valid": len(objects), "invalid": 0, "errors": 0, "skipped": 0}


def test_the_examples_conform(conform: Conform) -> None:
    paths = sorted((ROOT / "examples").glob("*.yaml"))
    objects = [each for path in paths for each in yaml.safe_load_all(path.read_text())]
    said = conform(objects)
    assert said["resources"] == []
    assert said["summary"]["valid"] == len(objects)


def test_what_no_schema_knows_is_found(rendered: dict[str, list[Json]], conform: Conform) -> None:
    changes: dict[str, Json] = {
        "Deployment": {"spec": {"replica": 2}},
        "ClusterRole": {"rules": [{"verb": ["get"]}]},
        "ServiceMonitor": {"spec": {"selectors": {}}},
    }
    wrong = [
        next(each for each in rendered["everything"] if each["kind"] == kind) | change
        for kind, change in changes.items()
    ]
    assert conform(wrong)["summary"]["invalid"] == len(wrong)
