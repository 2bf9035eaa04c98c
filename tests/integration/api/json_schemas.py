"""OpenAPI documents of an API server and schemas of CRDs as JSON schemas that know no other keys.

kubeconform reads one file for each kind. What is published for it elsewhere is made from the same
documents; these come from the server that the tests run, so they are of its very version.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

OPEN = "x-kubernetes-preserve-unknown-fields"


def kinds_of(document: Json) -> Iterator[tuple[tuple[str, str], Json]]:
    """((apiVersion, kind), schema) of every kind that a group's OpenAPI document describes."""
    components = document["components"].get("schemas", {})
    strict = {"schemas": {name: closed(each) for name, each in components.items()}}
    for name, schema in components.items():
        for each in schema.get("x-kubernetes-group-version-kind", ()):
            api_version = "/".join(filter(None, (each["group"], each["version"])))
            whole = {"$ref": f"#/components/schemas/{name}", "components": strict}
            yield (api_version, each["kind"]), whole


def kinds_of_crd(crd: Json) -> Iterator[tuple[tuple[str, str], Json]]:
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
        if not schema.get(OPEN):
            result.setdefault("additionalProperties", False)
    for below in ("items", "additionalProperties"):
        if isinstance(schema.get(below), dict):
            result[below] = closed(schema[below])
    return result
