"""The cost of one pod for the API server, by the parts that a pod carries.

Each round creates the pods of every variant: bare pods, Drumline's pods, and Drumline's pods
without one part. No kubelet serves their node, so nobody writes to the pods. The server's allocated
memory is counted beside its processor time, because it does not depend on other load.

`make bench WHAT=pod_cost`; `ARGS="--pods 20 --rounds 1"` for a look.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from drumline.kube import writes
from drumline.kube.client import KubeClient
from drumline.kube.credentials import from_kubeconfig
from drumline.kube.kinds import PODS
from drumline.kube.request import Request, Verb
from tools.bench import load
from tools.bench.report import Row, publish
from tools.bench.shapes import GPUS
from tools.bench.stand import furnished
from tools.cluster import Cluster
from tools.cluster.process import find
from tools.cluster.rest import Api

Json = dict[str, Any]

NODE: Final = "without-kubelet"
BARE: Final = "bare pod"
_AT_ONCE: Final = 64
_TOTAL: Final = re.compile(rb"^# TotalAlloc = (\d+)$", re.MULTILINE)
_HEAP: Final = Request(verb=Verb.GET, resource=PODS, path="/debug/pprof/heap", query={"debug": "1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A pod, and how it is created."""

    pod: Json
    at_once: int = _AT_ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Costs of one pod."""

    milliseconds: float
    """Processor time of the API server."""
    kibibytes: float
    """Memory that the API server allocated."""


def main() -> None:
    """Start a cluster, measure, publish, remove it."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.pod_cost", description=__doc__)
    parser.add_argument("--pods", type=int, default=50, help="of each variant in a round")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    with furnished("pod-cost", []) as cluster:
        with Api(cluster.kubeconfig) as api:
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
            api.request("POST", "/api/v1/nodes", node)
        costs = asyncio.run(_measure(cluster, pods=chosen.pods, rounds=chosen.rounds))
    publish(
        "pod_cost", list(_rows(costs)), command=f"--pods {chosen.pods} --rounds {chosen.rounds}"
    )


def variants() -> dict[str, Variant]:
    """Return the variants by name."""
    gang = load.bound_pods("gang", [NODE] * 2, gpus=GPUS)[0]
    (lone,) = load.bound_pods("lone", [NODE], gpus=1)
    container = gang["spec"]["containers"][0]
    bare = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": load.NAMESPACE},
        "spec": {
            "nodeName": NODE,
            "automountServiceAccountToken": False,
            "containers": [{key: container[key] for key in ("name", "image", "resources")}],
        },
    }
    return {
        BARE: Variant(pod=bare),
        "pod of a lone job": Variant(pod=lone),
        "pod of a gang": Variant(pod=gang),
        "  created one by one": Variant(pod=gang, at_once=1),
        "  with variables of the init container in env": Variant(pod=_changed(gang, _spread)),
        **{f"  without {name}": Variant(pod=_changed(gang, by)) for name, by in _PARTS.items()},
    }


def _changed(pod: Json, change: Callable[[Json], object]) -> Json:
    pod = copy.deepcopy(pod)
    change(pod)
    return pod


def _spread(pod: Json) -> None:
    """Move the variables in the command of the init container to its environment."""
    (init,) = pod["spec"]["initContainers"]
    for word in [word for word in init["command"] if "=" in word]:
        init["command"].remove(word)
        name, _, value = word.partition("=")
        init["env"].append({"name": name, "value": value})


def _without(pod: Json, *keys: str) -> None:
    spec = pod["spec"]
    for holder in (spec, *spec["containers"], *spec["initContainers"]):
        for key in keys:
            holder.pop(key, None)


_PARTS: Final[dict[str, Callable[[Json], object]]] = {
    "labels": lambda pod: pod["metadata"].pop("labels"),
    "annotations": lambda pod: pod["metadata"].pop("annotations"),
    "env of the main container": lambda pod: pod["spec"]["containers"][0].pop("env"),
    "env of the init container": lambda pod: pod["spec"]["initContainers"][0].pop("env"),
    "init container": lambda pod: pod["spec"].pop("initContainers"),
    "volumes and mounts": lambda pod: _without(pod, "volumes", "volumeMounts"),
    "security contexts": lambda pod: _without(pod, "securityContext"),
    "tolerations": lambda pod: _without(pod, "tolerations"),
    "requests and limits": lambda pod: _without(pod, "resources"),
}


async def _measure(cluster: Cluster, *, pods: int, rounds: int) -> dict[str, list[Cost]]:
    (server,) = (each.pid for each in find(cluster.folder) if each.role == "kube-apiserver")
    costs: dict[str, list[Cost]] = {}
    async with (
        KubeClient(from_kubeconfig(cluster.kubeconfig), user_agent="bench") as client,
        load.watching(client) as bound,
    ):
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", flush=True)
            for which, (name, variant) in enumerate(variants().items()):
                names = [f"r{number}-v{which}-{index}" for index in range(pods)]
                cost = await _cost(client, bound, variant, names=names, server=server)
                costs.setdefault(name, []).append(cost)
    return costs


async def _cost(
    client: KubeClient, bound: load.BoundPods, variant: Variant, *, names: list[str], server: int
) -> Cost:
    bound.begin(len(names))
    allocated, taken = await _allocated(client), load.cpu_seconds(server)
    await _submit(client, variant, names)
    await load.all_bound(client, bound, seconds=300)
    taken = load.cpu_seconds(server) - taken
    allocated = await _allocated(client) - allocated
    await load.clear(client, bound)
    return Cost(milliseconds=1e3 * taken / len(names), kibibytes=allocated / 1024 / len(names))


async def _submit(client: KubeClient, variant: Variant, names: list[str]) -> None:
    free = asyncio.Semaphore(variant.at_once)

    async def create(name: str) -> None:
        pod = {**variant.pod, "metadata": {**variant.pod["metadata"], "name": name}}
        async with free:
            await writes.create(client, PODS, body=pod, namespace=load.NAMESPACE)

    await asyncio.gather(*map(create, names))


async def _allocated(client: KubeClient) -> int:
    """Return the bytes that the API server has allocated since its start."""
    found = _TOTAL.search(await client.send(_HEAP))
    if found is None:
        raise RuntimeError("the API server's heap profile has no TotalAlloc")
    return int(found[1])


def _rows(costs: dict[str, list[Cost]]) -> Iterator[Row]:
    """Return the ratios to a bare pod of the same round."""
    bare = costs[BARE]
    milliseconds = median(cost.milliseconds for cost in bare)
    yield Row(name=f"{BARE}: processor time", value=milliseconds, unit="ms")
    yield Row(name=f"{BARE}: allocated", value=median(c.kibibytes for c in bare), unit="KiB")
    for name, rounds in costs.items():
        if name != BARE:
            pairs = list(zip(rounds, bare, strict=True))
            times = median(cost.milliseconds / base.milliseconds for cost, base in pairs)
            memory = median(cost.kibibytes / base.kibibytes for cost, base in pairs)
            yield Row(name=f"{name}: processor time", value=times, unit="x bare")
            yield Row(name=f"{name}: allocated", value=memory, unit="x bare")


if __name__ == "__main__":
    main()
