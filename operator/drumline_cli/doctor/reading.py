"""Read all objects that the checks need from the API server, with the caller's rights.

A list that the caller may not read becomes the fact `Unread`. A kind that is not served gives an
empty list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import msgspec

from drumline.kube import errors, kinds, reads
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials
from drumline.kube.kinds import Resource
from drumline.kube.request import Request, Verb
from drumline.settings import Settings
from drumline_api.base import GROUP
from drumline_api.crds import DEFINITIONS
from drumline_api.load import ApiError
from drumline_cli.cluster_access import cluster_client, refusal
from drumline_cli.doctor import objects
from drumline_cli.doctor.facts import (
    ClusterFacts,
    Fact,
    LeaseFact,
    MonitorFact,
    OperatorFact,
    SchemaFact,
    ServerVersion,
    Unread,
)
from drumline_cli.errors import NotAnswered
from drumline_cli.formatting import moment
from drumline_contract import plain

T = TypeVar("T")
# The leader election uses this name, in the namespace of the operator.
LEASE: Final = "drumline-operator"
NODE_LEASES: Final = "kube-node-lease"
_OUR_LABEL: Final = "app.kubernetes.io/name=drumline"
_SERVER: Final = kinds.Resource(group="", version="", plural="server", kind="", namespaced=False)
_DEPLOYMENTS: Final = kinds.Resource(
    group="apps", version="v1", plural="deployments", kind="Deployment", namespaced=True
)
_DEFINITIONS: Final = kinds.Resource(
    group="apiextensions.k8s.io",
    version="v1",
    plural="customresourcedefinitions",
    kind="CustomResourceDefinition",
    namespaced=False,
)
_DRA: Final = "resource.k8s.io/v1"


async def read(credentials: Credentials, *, system_namespace: str) -> ClusterFacts:
    """Return the facts of a cluster.

    Args:
        credentials: How to reach the API server.
        system_namespace: Where the operator is, or will be.

    Raises:
        NotAnswered: not even the API groups can be read.
    """
    # One client for all reads: connections and the token are shared.
    async with cluster_client(credentials) as client:
        try:
            # API groups come first. A group that is not served must not count as a failure.
            served = await _groups(client)
        # If even this read fails, no check can run, so the command stops.
        except errors.KubeError as error:
            raise NotAnswered(refusal(error, what="API groups")) from None
        return await _facts(_ClusterReader(client=client, served=served), system_namespace)


async def _facts(reader: _ClusterReader, system_namespace: str) -> ClusterFacts:
    client, listed = reader.client, reader.listed
    # Read all lists at the same time. A large cluster answers each list in seconds.
    async with asyncio.TaskGroup() as tasks:
        server = tasks.create_task(_attempt(_version(client), what="the server's version"))
        schemas = tasks.create_task(_attempt(_schemas(client), what="custom resources"))
        operator = tasks.create_task(
            _attempt(_operator(client, system_namespace), what=f"operator in {system_namespace}")
        )
        nodes = tasks.create_task(listed(kinds.NODES, objects.node))
        # Kubelets renew a Lease in this namespace every ten seconds.
        clocks = tasks.create_task(listed(kinds.LEASES, objects.node_clock, namespace=NODE_LEASES))
        slices = tasks.create_task(listed(_dra(), objects.device_slice))
        device_pods = tasks.create_task(
            # Pods without a node hold no devices. The server filters them, which saves most of the
            # list.
            listed(kinds.PODS, objects.device_pod, field_selector="spec.nodeName!=")
        )
        pools = tasks.create_task(listed(kinds.GPU_POOLS, objects.pool))
        queues = tasks.create_task(listed(kinds.TRAINING_QUEUES, objects.queue))
        jobs = tasks.create_task(listed(kinds.TRAINING_JOBS, objects.job))
        namespaces = tasks.create_task(listed(kinds.NAMESPACES, objects.namespace))
        claims = tasks.create_task(listed(kinds.PERSISTENT_VOLUME_CLAIMS, objects.claim))
        classes = tasks.create_task(listed(kinds.STORAGE_CLASSES, objects.storage_class))
        priorities = tasks.create_task(listed(kinds.PRIORITY_CLASSES, objects.priority))
        # The Prometheus operator is optional. Without its CRDs the list is empty.
        prometheuses = tasks.create_task(
            listed(_monitoring("prometheuses", "Prometheus"), objects.prometheus)
        )
        monitors = tasks.create_task(_monitors(reader, system_namespace))
    # The group has ended, so each task has a result. `_attempt` caught the API errors.
    return ClusterFacts(
        server=server.result(),
        groups=reader.served,
        schemas=schemas.result(),
        operator=operator.result(),
        nodes=nodes.result(),
        clocks=clocks.result(),
        slices=slices.result(),
        device_pods=device_pods.result(),
        pools=pools.result(),
        queues=queues.result(),
        jobs=jobs.result(),
        namespaces=namespaces.result(),
        claims=claims.result(),
        storage_classes=classes.result(),
        priorities=priorities.result(),
        prometheuses=prometheuses.result(),
        monitors=monitors.result(),
        # The program's own fields show whether the installed CRDs are older.
        expected_fields=expected_fields(),
        system_namespace=system_namespace,
    )


def expected_fields() -> Mapping[str, frozenset[str]]:
    """Return the fields of our kinds, as this program has them."""
    # The manifests are those of the chart, so both sides pass the same decoder.
    schemas = [objects.schema_of(definition.manifest()) for definition in DEFINITIONS]
    return {schema.kind: schema.fields for schema in schemas}


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClusterReader:
    client: KubeClient
    served: frozenset[str]

    async def listed(
        self,
        resource: Resource,
        decode: Callable[[bytes], T | None],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
    ) -> Fact[tuple[T, ...]]:
        """Read all objects of a kind page by page. Omit objects that `decode` returns as None."""
        # A group that is not served has no objects. Asking would return a 404.
        if resource.group and resource.api_version not in self.served:
            return ()

        async def pages() -> tuple[T, ...]:
            facts: list[T] = []
            # Pages keep the memory low: a cluster may have 100,000 Pods.
            async for page in reads.list_pages(
                self.client,
                resource,
                namespace=namespace,
                label_selector=label_selector,
                field_selector=field_selector,
            ):
                # Decoding per page drops fields that no check needs.
                facts += [fact for raw in page.items if (fact := decode(raw)) is not None]
            return tuple(facts)

        return await _attempt(pages(), what=resource.plural)


async def _attempt(reading: Awaitable[T], *, what: str) -> Fact[T]:
    try:
        return await reading
    # A refusal is a fact. The check then reports that it could not run.
    except errors.KubeError as error:
        return Unread(reason=refusal(error, what=what))
    # A proxy or another version may return an unexpected form. One bad list must not stop the rest.
    except (msgspec.MsgspecError, ApiError, ValueError, KeyError, TypeError) as error:
        return Unread(reason=f"{what}: not readable: {plain(str(error))}")


class _ServedVersion(msgspec.Struct, frozen=True, rename="camel"):
    group_version: str


class _ServedGroup(msgspec.Struct, frozen=True):
    versions: tuple[_ServedVersion, ...]


class _ServedGroups(msgspec.Struct, frozen=True):
    groups: tuple[_ServedGroup, ...]


async def _groups(client: KubeClient) -> frozenset[str]:
    answer = await client.send(Request(verb=Verb.GET, resource=_SERVER, path="/apis"))
    try:
        groups = msgspec.json.decode(answer, type=_ServedGroups).groups
    except (msgspec.MsgspecError, RecursionError) as error:
        raise errors.Malformed(f"an answer of {len(answer)} bytes: {error}") from error
    # Core versions are not in this list. They are always served.
    return frozenset(version.group_version for group in groups for version in group.versions)


async def _version(client: KubeClient) -> ServerVersion:
    answer = await client.send(Request(verb=Verb.GET, resource=_SERVER, path="/version"))
    version = msgspec.json.decode(answer)
    return ServerVersion(
        major=int(version["major"]),
        minor=int(version["minor"].rstrip("+")),  # EKS and GKE write 34+
        text=plain(version["gitVersion"]),
    )


async def _schemas(client: KubeClient) -> tuple[SchemaFact, ...]:
    schemas: list[SchemaFact] = []
    for resource in (kinds.TRAINING_JOBS, kinds.TRAINING_QUEUES, kinds.GPU_POOLS):
        try:
            raw = await reads.get(client, _DEFINITIONS, name=f"{resource.plural}.{GROUP}")
        # A missing CRD is reported by the check, which knows the fix.
        except errors.NotFound:
            continue
        schemas.append(objects.schema(raw))
    return tuple(schemas)


async def _operator(client: KubeClient, namespace: str) -> OperatorFact | None:
    deployments = await reads.list_all(
        client,
        _DEPLOYMENTS,
        namespace=namespace,
        label_selector=f"{_OUR_LABEL},app.kubernetes.io/component=operator",
    )
    # The chart labels the Deployment, so a changed release name still works.
    if not deployments:
        return None
    deployment = msgspec.json.decode(deployments[0])
    # The chart has exactly one container. Another number means a foreign Deployment.
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    variables = {entry["name"]: entry.get("value", "") for entry in container["env"]}
    # An old chart does not set the variable. The operator then uses its default.
    user = variables.get("DRUMLINE_TRAINING_USER", str(Settings().training_user))
    guarded = variables.get("DRUMLINE_GUARDED_POOLS", "")
    return OperatorFact(
        namespace=namespace,
        replicas=deployment["spec"]["replicas"],
        ready_replicas=deployment.get("status", {}).get("readyReplicas", 0),
        priority_class=plain(variables["DRUMLINE_PRIORITY_CLASS"]),
        # `assigned` leaves the user to the namespace, as on OpenShift.
        trainer_image=variables["DRUMLINE_TRAINER_IMAGE"],
        training_user=None if user == "assigned" else int(user),
        guarded_pools=frozenset(filter(None, guarded.split(","))),
        evicts_foreign_pods=variables.get("DRUMLINE_EVICT_FOREIGN_PODS") == "true",
        lease=await _attempt(_lease(client, namespace), what=f"lease {namespace}/{LEASE}"),
    )


async def _lease(client: KubeClient, namespace: str) -> LeaseFact | None:
    try:
        raw = await reads.get(client, kinds.LEASES, name=LEASE, namespace=namespace)
    except errors.NotFound:
        return None
    spec = msgspec.json.decode(raw)["spec"]
    renewed = moment(spec.get("renewTime"))
    # A Lease without a holder was released by an operator that stopped.
    if not spec.get("holderIdentity") or renewed is None:
        return None
    return LeaseFact(
        holder=plain(spec["holderIdentity"]),
        # Both times come from the cluster, so the clock of this machine does not matter.
        renewed_ago_seconds=await _now(client) - renewed,
        duration_seconds=spec["leaseDurationSeconds"],
    )


async def _now(client: KubeClient) -> float:
    """Return the API server's time, from the creation time of a SelfSubjectReview."""
    # A SelfSubjectReview needs no rights, and the server stamps its creation time.
    now = moment((await reads.self_review(client)).created)
    if now is None:
        raise ValueError("a review without a time")
    return now


async def _monitors(reader: _ClusterReader, namespace: str) -> Fact[tuple[MonitorFact, ...]]:
    monitors: list[MonitorFact] = []
    for plural, kind in (
        ("servicemonitors", "ServiceMonitor"),
        ("podmonitors", "PodMonitor"),
        ("prometheusrules", "PrometheusRule"),
    ):
        listed = await reader.listed(
            _monitoring(plural, kind),
            partial(objects.monitor, kind=kind),
            namespace=namespace,
            label_selector=_OUR_LABEL,
        )
        # One unreadable kind makes the whole answer unreliable.
        if isinstance(listed, Unread):
            return listed
        monitors += listed
    return tuple(monitors)


def _dra() -> Resource:
    group, _, version = _DRA.partition("/")
    return Resource(
        group=group,
        version=version,
        plural="resourceslices",
        kind="ResourceSlice",
        namespaced=False,
    )


def _monitoring(plural: str, kind: str) -> Resource:
    return Resource(
        group="monitoring.coreos.com", version="v1", plural=plural, kind=kind, namespaced=True
    )
