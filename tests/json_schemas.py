"""OpenAPI documents of Kubernetes and schemas of CRDs as JSON schemas that know no other keys.

kubeconform reads one file for each kind. What is published for it elsewhere is made from the same
documents; these come with the source of each minor, so nothing is asked of anybody.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tools.cluster.go_modules import module_source

PROMETHEUS_OPERATOR = ("github.com/prometheus-operator/prometheus-operator", "0.92.0")
MONITORS = ("podmonitors", "prometheusrules", "servicemonitors")
LOCATION = "{{ .Group }}.{{ .ResourceAPIVersion }}.{{ .ResourceKind }}.json"
"""How kubeconform finds what `write` has written."""
_OPEN = "x-kubernetes-preserve-unknown-fields"

Json = dict[str, Any]
Kind = tuple[str, str]
"""apiVersion and kind."""


class Schemas:
    """The kinds of one version of Kubernetes, of the Prometheus operator, and of given CRDs.

    Args:
        version: of Kubernetes.
        crds: CustomResourceDefinitions.
    """

    def __init__(self, version: str, *, crds: Iterable[Json]) -> None:
        self._documents = module_source("k8s.io/kubernetes", version) / "api/openapi-spec/v3"
        self._schemas: dict[Kind, Json] = {}
        theirs = module_source(*PROMETHEUS_OPERATOR) / "example/prometheus-operator-crd"
        paths = [theirs / f"monitoring.coreos.com_{name}.yaml" for name in MONITORS]
        for crd in (*crds, *(yaml.safe_load(path.read_text()) for path in paths)):
            self._schemas.update(kinds_of_crd(crd))

    def write(self, kinds: Iterable[Kind], folder: Path) -> None:
        """Write a file for each kind."""
        for api_version, kind in sorted(set(kinds)):
            group, _, version = api_version.rpartition("/")
            path = folder / f"{group or version}.{version}.{kind.lower()}.json"
            path.write_text(json.dumps(self._of(api_version, kind)))

    def _of(self, api_version: str, kind: str) -> Json:
        if (api_version, kind) not in self._schemas:
            root = "apis" if "/" in api_version else "api"
            name = f"{root}__{api_version.replace('/', '__')}_openapi.json"
            self._schemas.update(kinds_of(json.loads((self._documents / name).read_text())))
        return self._schemas[api_version, kind]


def kinds_of(document: Json) -> Iterator[tuple[Kind, Json]]:
    """The schema of every kind that a group's OpenAPI document describes."""
    components = document["components"]["schemas"]
    strict = {"schemas": {name: closed(each) for name, each in components.items()}}
    for name, schema in components.items():
        for each in schema.get("x-kubernetes-group-version-kind", ()):
            api_version = "/".join(filter(None, (each["group"], each["version"])))
            whole = {"$ref": f"#/components/schemas/{name}", "components": strict}
            yield (api_version, each["kind"]), whole


def kinds_of_crd(crd: Json) -> Iterator[tuple[Kind, Json]]:
    """The same of a CustomResourceDefinition."""
    spec = crd["spec"]
    for version in spec["versions"]:
        kind = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
        yield kind, closed(version["schema"]["openAPIV3Schema"])


def closed(schema: Json) -> Json:
    """The schema with every object closed whose properties are listed."""
    result = dict(schema)
    if "properties" in schema:
        result["properties"] = {name: closed(each) for name, each in schema["properties"].items()}
        if not schema.get(_OPEN):
            result.setdefault("additionalProperties", False)
    for below in ("items", "additionalProperties"):
        if isinstance(schema.get(below), dict):
            result[below] = closed(schema[below])
    return result
