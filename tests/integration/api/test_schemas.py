"""What the chart renders against the schemas of this minor of Kubernetes, by kubeconform.

The API server says what it accepts; this says what it would have overlooked, for what it has no
kind of, too: the Prometheus operator's. `make test-all WHAT=minors` asks the other minors.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster import Cluster
from tests.cluster.binaries import KUBERNETES_VERSION, ensure_binaries, module_source
from tests.cluster.rest import Api
from tests.integration.api.conftest import ROOT, Helm, Kubectl
from tests.integration.api.json_schemas import Json, kinds_of, kinds_of_crd

CHART = ROOT / "helm/drumline"
PROMETHEUS_OPERATOR = ("github.com/prometheus-operator/prometheus-operator", "0.92.0")
LOCATION = "{{ .Group }}.{{ .ResourceAPIVersion }}.{{ .ResourceKind }}.json"
VALUES = {
    "default": (),
    "production": (f"--values={CHART / 'values-production.yaml'}",),
    "everything": (f"--values={CHART / 'tests/everything.yaml'}",),
}

Conform = Callable[[str], Json]


class Schemas:
    """What this API server serves, asked a group at a time, and the Prometheus operator's kinds."""

    def __init__(self, server: Api) -> None:
        self._server = server
        self._documents = server.request("GET", "/openapi/v3")["paths"]
        self._schemas: dict[tuple[str, str], Json] = {}
        crds = module_source(*PROMETHEUS_OPERATOR) / "example/prometheus-operator-crd"
        for name in ("podmonitors", "prometheusrules", "servicemonitors"):
            crd = yaml.safe_load((crds / f"monitoring.coreos.com_{name}.yaml").read_text())
            self._schemas.update(kinds_of_crd(crd))

    def of(self, api_version: str, kind: str) -> Json:
        """The schema of a kind."""
        if (api_version, kind) not in self._schemas:
            path = f"apis/{api_version}" if "/" in api_version else f"api/{api_version}"
            url = self._documents[path]["serverRelativeURL"]
            self._schemas.update(kinds_of(self._server.request("GET", url)))
        return self._schemas[api_version, kind]


@pytest.fixture(scope="module")
def schemas(control_plane: Cluster, kubectl: Kubectl) -> Iterator[Schemas]:
    """Those of the session's control plane, which serves our kinds."""
    _ = kubectl
    with Api(control_plane.kubeconfig) as server:
        yield Schemas(server)


@pytest.fixture
def conform(schemas: Schemas, tmp_path: Path) -> Conform:
    """What kubeconform says about manifests: a summary, and what does not hold."""
    program = ensure_binaries(["kubeconform"], say=print)["kubeconform"]
    options = ("-strict", "-summary", "-output=json", f"-schema-location={tmp_path}/{LOCATION}")

    def run(manifests: str) -> Json:
        for each in filter(None, yaml.safe_load_all(manifests)):
            api_version, kind = each["apiVersion"], each["kind"]
            group, _, version = api_version.rpartition("/")
            name = f"{group or version}.{version}.{kind.lower()}.json"
            (tmp_path / name).write_text(json.dumps(schemas.of(api_version, kind)))
        done = subprocess.run(
            [program, *options, f"-kubernetes-version={KUBERNETES_VERSION}"],
            input=manifests,
            capture_output=True,
            text=True,
            check=False,
        )
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_every_manifest_conforms(values: tuple[str, ...], helm: Helm, conform: Conform) -> None:
    serves = "--api-versions=security.openshift.io/v1"
    rendered = helm("template", "drumline", CHART, "-n", "drumline-system", serves, *values)
    said = conform(rendered)
    assert said["resources"] == []
    objects = [each for each in yaml.safe_load_all(rendered) if each]
    assert said["summary"] == {"valid": len(objects), "invalid": 0, "errors": 0, "skipped": 0}


def test_the_examples_conform(conform: Conform) -> None:
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        said = conform(path.read_text())
        assert said["resources"] == [], path
        assert said["summary"]["valid"] > 0


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("Deployment", {"spec": {"replica": 2}}),
        ("ClusterRole", {"rules": [{"verb": ["get"]}]}),
        ("ServiceMonitor", {"spec": {"selectors": {}}}),
    ],
)
def test_what_no_schema_knows_is_found(
    kind: str, change: Json, helm: Helm, conform: Conform
) -> None:
    rendered = helm("template", "drumline", CHART, *VALUES["everything"])
    manifest = next(each for each in yaml.safe_load_all(rendered) if each and each["kind"] == kind)
    said = conform(yaml.safe_dump({**manifest, **change}))
    assert said["summary"]["invalid"] == 1
