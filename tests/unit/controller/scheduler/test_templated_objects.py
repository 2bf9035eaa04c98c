"""The objects of a demand are all made, though only some were at first."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from drumline.controller.pools.autoscaling import demand_name
from drumline.controller.pools.demand_objects import DemandInput, ObjectSettings
from drumline.controller.pools.templated_objects import TEMPLATED, TemplatedObjects
from drumline.kube.client import KubeClient
from drumline.kube.errors import ServerError
from drumline.kube.request import Request, Verb
from tests.unit.controller.conversion.test_autoscaling import DEMAND, GANG, SHARE, a_spec

MIXED = replace(DEMAND, shares=(SHARE, SHARE, replace(SHARE, gpus=4)))
NAME = demand_name(MIXED)


@dataclass
class Failing(KubeClient):
    """An API server that fails from one create on."""

    creates_left: int = 100
    stored: dict[str, dict[str, Any]] = field(default_factory=dict[str, Any])
    """By kind and name."""
    created: list[str] = field(default_factory=list[str])

    async def send(self, request: Request) -> bytes:
        if request.verb is Verb.LIST:
            kind = request.resource.kind
            items = [body for body in self.stored.values() if body["kind"] == kind]
            return json.dumps({"metadata": {}, "items": items}).encode()
        if request.verb is Verb.GET:
            return b'{"metadata": {"name": "h100", "uid": "u", "resourceVersion": "1"}}'
        if self.creates_left <= 0:
            raise ServerError(code=500, reason="InternalError", message="etcd is slow")
        self.creates_left -= 1
        body = json.loads(request.body or b"")
        body["metadata"] |= {"uid": body["metadata"]["name"], "resourceVersion": "1"}
        key = f"{body['kind']}/{body['metadata']['name']}"
        self.stored[key] = body
        self.created.append(key)
        return json.dumps(body).encode()


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("ProvisioningRequest", [f"ProvisioningRequest/{NAME}"]),
        ("CapacityBuffer", [f"CapacityBuffer/{NAME}-1", f"CapacityBuffer/{NAME}-0"]),
    ],
)
async def test_what_is_missing_of_a_demand_is_made_later(mode: str, names: list[str]) -> None:
    expected = [f"PodTemplate/{NAME}-0", f"PodTemplate/{NAME}-1", *names]
    for made in range(len(expected)):
        api = Failing(creates_left=made)
        objects = TemplatedObjects(
            client=api,
            settings=ObjectSettings(namespace="ours", image="any:1"),
            kind=TEMPLATED[mode],
        )
        asking = DemandInput(demand=MIXED, spec=a_spec(mode=mode), gang=GANG)
        await objects.read()
        await objects.ask(asking)
        assert api.created == expected[:made]
        api.creates_left = 100
        await objects.read()
        await objects.ask(asking)
        assert api.created == expected
        owners = [body["metadata"]["ownerReferences"][0]["uid"] for body in api.stored.values()]
        assert owners == ["u"] * len(expected)
        await objects.read()
        await objects.ask(asking)
        assert api.created == expected
