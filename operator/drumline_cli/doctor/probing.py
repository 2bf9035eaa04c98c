"""Tries things out with pods, and takes every one of them away again."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Final

from drumline.kube import errors, kinds, reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials
from drumline_cli.cluster_access import cluster_client, refusal
from drumline_cli.doctor import probe_pods
from drumline_cli.doctor.checks.hardware import members_of
from drumline_cli.doctor.facts import ClusterFacts, Fact, NetworkProbe, Probes, Unread
from drumline_cli.doctor.probe_pods import LABEL, Json, ProbePod, ProbeSite

# Two nodes of each pool find most problems of images and adapters.
NODES_OF_A_POOL: Final = 2
_LOOK_SECONDS: Final = 1.0
AFTER_SECONDS: Final = 60
"""A pod that nobody deletes ends by itself so long after its step."""


async def probe(
    credentials: Credentials,
    facts: ClusterFacts,
    *,
    namespace: str,
    image: str,
    seconds: int,
    user: int | None,
    pull_secrets: tuple[str, ...],
) -> Fact[Probes | None]:
    """Return the results of pods on two nodes of each pool.

    Args:
        credentials: may create and delete pods and NetworkPolicies in the namespace.
        facts: facts of the cluster, read before.
        namespace: namespace of the pods.
        image: image of the pods.
        seconds: timeout of each step. A step may include an image pull.
        user: UID of the pods. None: the namespace assigns it.
        pull_secrets: pull secrets of the namespace, for the image.
    """
    # The probe needs nodes and pools. Without them the reason is the result.
    if isinstance(facts.nodes, Unread):
        return facts.nodes
    if isinstance(facts.pools, Unread):
        return facts.pools
    chosen = [
        (pool.name, node.name)
        for pool in facts.pools
        for node in islice(members_of(pool, facts.nodes), NODES_OF_A_POOL)
    ]
    if not chosen:
        return Probes(image=image, nodes=(), network=Unread(reason="no pool has a node"))
    # Eight hexadecimal digits separate the objects of two runs.
    site = ProbeSite(
        run=secrets.token_hex(4),
        image=image,
        seconds=seconds + AFTER_SECONDS,
        user=user,
        pull_secrets=pull_secrets,
    )
    # The cleanup runs inside the client, because deleting needs a connection.
    try:
        async with (
            cluster_client(credentials) as client,
            _cleaned(
                _Probing(client=client, namespace=namespace, site=site, seconds=seconds)
            ) as probing,
        ):
            return await _probes(probing, chosen)
    except errors.KubeError as error:
        return Unread(reason=refusal(error, what=f"pods in namespace {namespace}", verb="create"))


async def _probes(probing: _Probing, chosen: list[tuple[str, str]]) -> Probes:
    _say(f"testing {probing.site.image} on {len(chosen)} nodes ...")
    # Create all pods first, so that the images are pulled at the same time.
    for number, (_, node) in enumerate(chosen):
        await probing.create(probe_pods.limit_pod(probing.site, number=number, node=node))
    names = [f"node-{number}" for number in range(len(chosen))]
    pods = await probing.wait(names, until=lambda pod: pod.over)
    nodes = tuple(
        probe_pods.node_probe(pods[name], pool=pool, node=node)
        for name, (pool, node) in zip(names, chosen, strict=True)
    )
    # Only nodes that ran a pod can test the network.
    able = [result.node for result in nodes if not result.problem]
    network = await _network(probing, able)
    return Probes(image=probing.site.image, nodes=nodes, network=network)


async def _network(probing: _Probing, nodes: list[str]) -> Fact[NetworkProbe]:
    """Test a NetworkPolicy between two nodes, or within the only one."""
    if not nodes:
        return Unread(reason="no node ran a pod")
    _say("testing a NetworkPolicy ...")
    here, there = nodes[0], nodes[-1]
    # The policy exists before the pods, so no connection can slip through.
    await probing.create(probe_pods.policy(probing.site))
    for name in ("open", "closed"):
        await probing.create(probe_pods.listening_pod(probing.site, name=name, node=there))
    listening = await probing.wait(
        ["open", "closed"], until=lambda pod: pod.over or bool(pod.address)
    )
    # Without an address of both pods there is nothing to connect to.
    opened, closed = listening["open"], listening["closed"]
    if not opened.address or not closed.address:
        return Unread(reason=f"no pod listens on {there}: {opened.problem or closed.problem}")
    await probing.create(
        probe_pods.connecting_pod(
            probing.site, node=here, open_at=opened.address, closed_at=closed.address
        )
    )
    client = (await probing.wait(["client"], until=lambda pod: pod.over))["client"]
    seen = probe_pods.network_probe(client, path=f"{here} to {there}")
    return seen or Unread(
        reason=f"the pod on {here} did not report which pods it reached: {client.problem}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probing:
    """The objects of one probe in their namespace."""

    client: KubeClient
    namespace: str
    site: ProbeSite
    seconds: int

    async def create(self, manifest: Json) -> None:
        """Create a pod or the policy."""
        resource = kinds.PODS if manifest["kind"] == "Pod" else kinds.NETWORK_POLICIES
        await writes.create(self.client, resource, body=manifest, namespace=self.namespace)

    async def wait(
        self, names: Iterable[str], *, until: Callable[[ProbePod], bool]
    ) -> dict[str, ProbePod]:
        """Wait until these pods are as wanted, or until the time is over. Return them.

        One that somebody else has deleted by then is over, too.
        """
        wanted = set(names)
        end = time.monotonic() + self.seconds
        while True:
            listed = await reads.list_all(
                self.client,
                kinds.PODS,
                namespace=self.namespace,
                label_selector=f"{LABEL}={self.site.run}",
            )
            # Pods of this run only: another user may probe at the same time.
            pods = {pod.name: pod for pod in map(probe_pods.probe_pod, listed)}
            ready = wanted <= {name for name, pod in pods.items() if until(pod)}
            if ready or time.monotonic() > end:
                return {name: pods.get(name) or probe_pods.gone(name) for name in wanted}
            await asyncio.sleep(_LOOK_SECONDS)


@asynccontextmanager
async def _cleaned(probing: _Probing) -> AsyncGenerator[_Probing]:
    """Delete the created objects in any case, also after Ctrl-C."""
    try:
        yield probing
    finally:
        selector = f"{LABEL}={probing.site.run}"
        for resource in (kinds.PODS, kinds.NETWORK_POLICIES):
            await _delete(probing, resource, selector=selector)


async def _delete(probing: _Probing, resource: kinds.Resource, *, selector: str) -> None:
    try:
        await writes.delete_collection(
            probing.client,
            resource,
            namespace=probing.namespace,
            label_selector=selector,
            # No grace: the pods have nothing to save.
            grace_seconds=0,
        )
    # A failed deletion is reported with the command that repeats it.
    except errors.KubeError as error:
        left = f"{resource.plural} of the probe (kubectl delete {resource.plural} -l {selector})"
        _say(f"not deleted: {refusal(error, what=left, verb='delete')}")


def _say(line: str) -> None:
    """Print progress to stderr, apart from the findings."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
