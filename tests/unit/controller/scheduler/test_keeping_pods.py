"""A pod stands for each kept node, and for no other; no autoscaler adds a node for it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from drumline.controller.pools.demand_objects import ObjectSettings
from drumline.controller.pools.keeping_pods import KeepingPods
from drumline.kube.client import KubeClient
from drumline.kube.errors import ServerError
from drumline.kube.request import Request, Verb
from drumline_scheduler.autoscaling.kept_nodes import KeptNode
from drumline_scheduler.model import Node
from tests.unit.controller.conversion.test_autoscaling import GANG, SHARE, a_spec

HOST = "kubernetes.io/hostname"
POOLS = {"h100": a_spec()}


@dataclass
class Api(KubeClient):
    """The pods of the operator's namespace."""

    fails: bool = False
    pods: dict[str, dict[str, Any]] = field(default_factory=dict[str, Any])
    requests: list[str] = field(default_factory=list[str])

    async def send(self, request: Request) -> bytes:
        if self.fails:
            raise ServerError(code=500, reason="InternalError", message="etcd is slow")
        self.requests.append(str(request.verb))
        return json.dumps(self._answer(request)).encode()

    def _answer(self, request: Request) -> dict[str, Any]:
        name = request.path.removesuffix("/status").rpartition("/")[2]
        match request.verb:
            case Verb.LIST:
                return {"metadata": {}, "items": list(self.pods.values())}
            case Verb.GET:
                return {"metadata": {"name": "h100", "uid": "u", "resourceVersion": "1"}}
            case Verb.CREATE:
                pod = json.loads(request.body or b"")
                pod["metadata"] |= {"uid": pod["metadata"]["name"], "resourceVersion": "1"}
                self.pods[pod["metadata"]["name"]] = pod
                return pod
            case Verb.PATCH:
                self.pods[name] |= json.loads(request.body or b"")
                return self.pods[name]
            case Verb.DELETE:
                return self.pods.pop(name)
            case _:
                uids = request.query["labelSelector"].partition("(")[2].rstrip(")").split(",")
                self.pods = {n: pod for n, pod in self.pods.items() if _uid(pod) not in uids}
                return {}


def _uid(pod: dict[str, Any]) -> str:
    return pod["metadata"]["labels"]["drumline.dev/kept-node"]


def keeping(api: Api) -> KeepingPods:
    settings = ObjectSettings(namespace="ours", image="any:1")
    return KeepingPods(client=api, settings=settings, clock=lambda: 0.0)


def kept(name: str, *, uid: str = GANG.uid, **labels: str) -> KeptNode:
    node = Node(name=name, pool="h100", allocatable=SHARE, labels=labels or {HOST: name})
    return KeptNode(gang=replace(GANG, uid=uid), node=node, share=SHARE)


async def test_pods_follow_the_nodes_that_are_kept_and_a_new_leader_goes_on_with_them() -> None:
    api = Api()
    ours = keeping(api)
    await ours.settle([kept("n1"), kept("n2")], pools=POOLS)
    before = dict(api.pods)
    assert {pod["spec"]["nodeSelector"][HOST] for pod in before.values()} == {"n1", "n2"}
    assert {pod["status"]["conditions"][0]["reason"] for pod in before.values()} == {
        "Unschedulable"
    }
    sent = len(api.requests)
    await ours.settle([kept("n1"), kept("n2")], pools=POOLS)
    assert len(api.requests) == sent  # nothing has changed
    await keeping(api).settle([kept("n2"), kept("n3")], pools=POOLS)
    assert {pod["spec"]["nodeSelector"][HOST] for pod in api.pods.values()} == {"n2", "n3"}
    (n2,) = before.keys() & api.pods.keys()
    assert api.pods[n2] == before[n2]
    await keeping(api).settle([], pools=POOLS)
    assert api.pods == {}


async def test_those_of_a_gang_that_starts_go_with_one_request() -> None:
    api = Api()
    ours = keeping(api)
    await ours.settle([kept("n1"), kept("n2"), kept("n3", uid="u-2")], pools=POOLS)
    api.requests.clear()
    await ours.release({"u-9"})
    await ours.release({GANG.uid, "u-9"})
    assert [_uid(pod) for pod in api.pods.values()] == ["u-2"]
    assert api.requests == [str(Verb.DELETE_COLLECTION)]


async def test_a_new_leader_releases_what_an_earlier_one_has_made() -> None:
    api = Api()
    await keeping(api).settle([kept("n1"), kept("n2", uid="u-2")], pools=POOLS)
    new = keeping(api)
    await new.release([])
    await new.release([GANG.uid])
    assert [_uid(pod) for pod in api.pods.values()] == ["u-2"]


@pytest.mark.parametrize("fails_first", ["settle", "release"])
async def test_what_is_not_known_behind_a_request_that_failed_is_released(fails_first: str) -> None:
    api = Api()
    ours = keeping(api)
    await ours.settle([kept("n1")], pools=POOLS)
    api.fails = True
    settle, release = ours.settle([kept("n1"), kept("n2")], pools=POOLS), ours.release([GANG.uid])
    failing, unused = (settle, release) if fails_first == "settle" else (release, settle)
    unused.close()
    with pytest.raises(ServerError):
        await failing
    api.fails = False
    await ours.release([GANG.uid])
    assert api.pods == {}


async def test_a_node_that_is_kept_for_several_is_released_for_any_of_them() -> None:
    api = Api()
    ours = keeping(api)
    shared = replace(kept("n1"), other_uids=("u-2", "u-3"))
    await ours.settle([shared, kept("n2"), kept("n3", uid="u-9")], pools=POOLS)
    await ours.release(["u-3"])
    assert [_uid(pod) for pod in api.pods.values()] == ["u-9"]
    await ours.settle([kept("n2"), kept("n3", uid="u-9")], pools=POOLS)
    assert {pod["spec"]["nodeSelector"][HOST] for pod in api.pods.values()} == {"n2", "n3"}


async def test_what_failed_is_made_later() -> None:
    api = Api(fails=True)
    ours = keeping(api)
    with pytest.raises(ServerError):
        await ours.settle([kept("n1")], pools=POOLS)
    api.fails = False
    await ours.settle([kept("n1")], pools=POOLS)
    assert len(api.pods) == 1


async def test_karpenter_is_told_of_the_kind_of_node_as_it_passes_over_pods_that_name_one() -> None:
    api = Api()
    labels = {
        HOST: "n1",
        "karpenter.sh/nodepool": "gpu",
        "node.kubernetes.io/instance-type": "p5",
        "topology.kubernetes.io/zone": "a",
    }
    await keeping(api).settle([kept("n1", **labels)], pools=POOLS)
    (pod,) = api.pods.values()
    del labels[HOST]
    selector = pod["spec"]["nodeSelector"]
    assert selector.items() >= labels.items()
    assert HOST not in selector
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["requests"]["nvidia.com/gpu"] == "8"


async def test_a_node_that_nothing_names_has_no_pod_that_might_ask_for_another() -> None:
    api = Api()
    await keeping(api).settle([kept("n1", disk="fast")], pools=POOLS)
    assert api.pods == {}
