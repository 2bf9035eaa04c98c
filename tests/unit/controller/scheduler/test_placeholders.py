"""Placeholders that an API server does not take: nobody is asked for a part of a gang."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from drumline.controller.pools.demand_objects import DemandInput, ObjectSettings
from drumline.controller.pools.placeholders import Placeholders
from drumline.kube.client import KubeClient
from drumline.kube.errors import Forbidden, ServerError, StatusError
from drumline.kube.request import Request, Verb
from tests.unit.controller.conversion.test_autoscaling import DEMAND, GANG, a_spec

QUOTA = Forbidden(code=403, reason="Forbidden", message="exceeded quota: gpus, limited: 8")
BUSY = ServerError(code=500, reason="InternalError", message="etcd is slow")
ASKING = DemandInput(demand=DEMAND, spec=a_spec(), gang=GANG)


@dataclass
class Site(KubeClient):
    """The operator's namespace, in which so many pods are allowed."""

    allowed: int = 100
    error: StatusError = QUOTA
    may_mark: bool = True
    pods: list[str] = field(default_factory=list[str])

    async def send(self, request: Request) -> bytes:
        answer: dict[str, Any] = {"metadata": {"name": "h100", "uid": "u", "resourceVersion": "1"}}
        match request.verb:
            case Verb.LIST:
                answer = {"metadata": {}, "items": []}
            case Verb.CREATE if len(self.pods) >= self.allowed:
                raise self.error
            case Verb.CREATE:
                answer = json.loads(request.body or b"")
                self.pods.append(answer["metadata"]["name"])
                answer["metadata"] |= {"uid": "u", "resourceVersion": "1"}
            case Verb.PATCH if not self.may_mark:
                raise self.error
            case Verb.DELETE_COLLECTION:
                self.pods.clear()
            case _:
                pass
        return json.dumps(answer).encode()


def placeholders(site: Site) -> Placeholders:
    settings = ObjectSettings(namespace="ours", image="any:1")
    return Placeholders(client=site, settings=settings, clock=lambda: 0.0)


@pytest.mark.parametrize(
    "limits", [{"allowed": 1}, {"may_mark": False}], ids=["a quota for one", "no right to mark"]
)
async def test_a_demand_that_is_refused_in_part_is_withdrawn_as_a_whole_and_says_why(
    limits: dict[str, Any],
) -> None:
    site = Site(**limits)
    ours = placeholders(site)
    await ours.ask(ASKING)
    assert site.pods == []
    assert ours.is_refused(DEMAND)
    said = await ours.answer(DEMAND)
    assert (
        said == "nothing: the API server rejects its placeholders: exceeded quota: gpus, limited: 8"
    )
    await ours.keep_only([])
    assert not ours.is_refused(DEMAND)


async def test_a_server_that_is_busy_refuses_nothing() -> None:
    site = Site(allowed=1, error=BUSY)
    ours = placeholders(site)
    with pytest.raises(ServerError):
        await ours.ask(ASKING)
    site.allowed = 100
    await ours.ask(ASKING)
    assert not ours.is_refused(DEMAND)
    assert len(site.pods) > 1
