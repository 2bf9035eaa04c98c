"""Read the objects for the rows from the cluster, with the reader's rights, or from files.

Lists are read at the same time. What may not be read is left out, with a remark, where rows can be
made without it; jobs of all namespaces that may not be read are read of the own namespace alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Final, Generic, TypeVar

import msgspec

from drumline.kube import errors, reads
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials
from drumline.kube.kinds import (
    GPU_POOLS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_SLICES,
    TRAINING_JOBS,
    TRAINING_QUEUES,
    Resource,
)
from drumline.kube.workload_kinds import KINDS
from drumline.overview.nodes import node_rows
from drumline.overview.objects import ClusterObjects, JobObject, decoded
from drumline.overview.workload_objects import JOB, QUEUE, PodObject, WorkloadObject
from drumline_api.objects import builtin
from drumline_api.objects.custom import StoredGpuPool, StoredTrainingQueue
from drumline_cli.cluster_access import NOT_SERVED, cluster_client, not_answered, refusal
from drumline_cli.errors import BadInput, NotAnswered, NotAnsweredYet, NotLoggedIn
from drumline_cli.manifests import display_name
from drumline_contract import plain

T = TypeVar("T")
_FOREIGN: Final = f"{QUEUE},!{JOB}"
"""Selects pods of other workloads that name a queue."""
_UNNAMED: Final = f"!{QUEUE},!{JOB}"
"""Selects all other pods of other workloads."""
WORKLOAD_KINDS: Final = tuple(KINDS)
"""What may wait for a queue beside jobs and pods."""
MOST_FILE_BYTES: Final = 256 * 2**20
_FORBIDDEN: Final = "is not readable by you"
_NOT_READ: Final = "was not read"


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedKinds:
    """Selection of the kinds to read.

    Attributes:
        namespace: namespace of the jobs. None: all namespaces that the user may read.
        queues: queues, priority classes and pools. Priority classes define the order of waiting
            jobs, and pools define the unit of GPUs.
        nodes: nodes, pools, and pods without a job that hold GPUs.
        places: nodes, if the user may list them.
        pods: pods without a job that name a queue, and the pools for the unit of GPUs.
        workload: kind and name of a pod, Job or other workload in the user's namespace.
    """

    namespace: str | None
    queues: bool = False
    nodes: bool = False
    places: bool = False
    pods: bool = False
    workload: tuple[Resource, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed(Generic[T]):
    objects: tuple[T, ...] = ()
    remarks: tuple[str, ...] = ()
    unread: str = ""
    """Why the list is not whole, as the predicate of an object that it lacks."""


async def from_cluster(
    credentials: Credentials, wanted: WantedKinds, *, own: str
) -> ClusterObjects:
    """Return the objects as they are now.

    Args:
        credentials: access to the API server.
        wanted: kinds that the command needs.
        own: namespace of the workload, and of the jobs if other namespaces may not be read.

    Raises:
        NotAnswered: the jobs, or wanted nodes or a wanted workload, cannot be read.
    """
    # Phase 1: several commands need pools, because pools define the unit of GPUs.
    want_pools = wanted.nodes or wanted.places or wanted.queues or wanted.pods
    want_pods = wanted.nodes or wanted.pods
    try:
        # Phase 2: read all lists at the same time. The slowest list sets the duration.
        async with cluster_client(credentials) as client, asyncio.TaskGroup() as reads:
            read_jobs = reads.create_task(_jobs(client, wanted.namespace, own=own))
            read_queues = reads.create_task(
                _optional(client, TRAINING_QUEUES, StoredTrainingQueue, wanted=wanted.queues)
            )
            read_priorities = reads.create_task(
                _optional(client, PRIORITY_CLASSES, builtin.PriorityClass, wanted=wanted.queues)
            )
            read_pools = reads.create_task(
                _optional(client, GPU_POOLS, StoredGpuPool, wanted=want_pools)
            )
            read_nodes = reads.create_task(_nodes(client, wanted))
            read_slices = reads.create_task(_slices(client, wanted=wanted.nodes))
            read_pods = reads.create_task(_pods(client, own=own, wanted=want_pods))
            read_workload = reads.create_task(_workload(client, wanted.workload, namespace=own))
    # A task group wraps errors. Users expect the first one, without a traceback.
    except BaseExceptionGroup as failed:  # the other reads have been cancelled and have ended
        raise failed.exceptions[0] from None
    # Phase 3: merge. A pod may arrive both by its name and through a label selector.
    jobs, queues, priorities = read_jobs.result(), read_queues.result(), read_priorities.result()
    pools, nodes, slices = read_pools.result(), read_nodes.result(), read_slices.result()
    pods, asked = read_pods.result(), read_workload.result()
    lists = (jobs, queues, priorities, pools, nodes, pods)
    cluster = ClusterObjects(
        as_of=time.time(),
        jobs=jobs.objects,
        queues=queues.objects,
        priorities=priorities.objects,
        pools=pools.objects,
        # The uid removes duplicates. The named pod is newer, so it wins.
        nodes=nodes.objects,
        slices=slices,
        pods=tuple({pod.metadata.uid: pod for pod in (*pods.objects, *asked.pods)}.values()),
        workloads=asked.workloads,
        remarks=tuple(remark for listed in lists for remark in listed.remarks),
        unread={
            resource.kind: listed.unread
            for resource, listed in ((TRAINING_QUEUES, queues), (GPU_POOLS, pools))
            if listed.unread
        },
    )
    # Phase 4: read the unlabelled pods only if GPUs are missing. This list may be very long.
    if not (want_pods and cluster.nodes and _misses_holders(cluster)):
        return cluster
    # The first client is closed. A new client costs one more connection, in rare cases only.
    async with cluster_client(credentials) as client:
        unnamed = await _pods_without_queue(client)
    return replace(
        cluster,
        pods=(*cluster.pods, *unnamed.objects),
        remarks=(*cluster.remarks, *unnamed.remarks),
    )


def _misses_holders(cluster: ClusterObjects) -> bool:
    """Return whether the operator counts more used GPUs in a pool than jobs and known pods hold."""
    held: Counter[str] = Counter()
    for row in node_rows(cluster):
        held[row.pool] += row.held_gpus
    # An absent status means a pool that the operator has not counted yet.
    return any(
        (pool.status.used_gpus or 0) > held[plain(pool.metadata.name)] for pool in cluster.pools
    )


async def _pods_without_queue(client: KubeClient) -> _Listed[PodObject]:
    """Return all other pods. There may be very many, so they are read only if GPUs are missing."""
    try:
        return await _read(client, PODS, PodObject, namespace=None, labels=_UNNAMED)
    except errors.KubeError as error:
        # A missing right here is common. The view remains useful with a remark.
        what = refusal(error, what="pods")
        return _Listed(remarks=(f"GPUs of pods that name no queue look free here: {what}.",))


async def _nodes(client: KubeClient, wanted: WantedKinds) -> _Listed[builtin.Node]:
    # For `places` the nodes only add details, so a refusal is silent.
    if wanted.places and not wanted.nodes:
        listed = await _optional(client, NODES, builtin.Node, wanted=True)
        return replace(listed, remarks=())  # most users may not list nodes
    return await _required(client, NODES, builtin.Node, wanted=wanted.nodes)


async def _jobs(client: KubeClient, namespace: str | None, *, own: str) -> _Listed[JobObject]:
    try:
        return await _read(client, TRAINING_JOBS, JobObject, namespace=namespace)
    # A 404 for the collection means that the CRD is not installed.
    except errors.NotFound:
        raise NotAnswered(NOT_SERVED) from None
    # RBAC often grants a user one namespace. Then retry with that namespace.
    except errors.Forbidden as error:
        if namespace is not None:
            raise not_answered(error, what=f"trainingjobs of {namespace}") from None
    except errors.KubeError as error:
        raise not_answered(error, what="trainingjobs") from None
    # This recursion has depth one, because the second call names a namespace.
    try:
        listed = await _jobs(client, own, own=own)
    except NotAnswered as error:
        if isinstance(error, NotLoggedIn | NotAnsweredYet):
            raise
        # Commands about all namespaces have no `-n`. The namespace is that of the context.
        remedy = "set the namespace of your kubeconfig's context to one that you may read"
        raise NotAnswered(f"{error}; {remedy}") from None
    remark = f"Showing only jobs of namespace {own}: you may not read other namespaces."
    return _Listed(objects=listed.objects, remarks=(*listed.remarks, remark))


async def _optional(
    client: KubeClient, resource: Resource, kind: type[T], *, wanted: bool
) -> _Listed[T]:
    try:
        if not wanted:
            return _Listed(unread=_NOT_READ)
        return await _read(client, resource, kind, namespace=None)
    # An expired login affects every request. Partial output would hide it.
    except errors.Unauthorized as error:  # ends the other reads
        raise not_answered(error, what=resource.plural) from None
    except errors.KubeError as error:
        return _Listed(
            remarks=(f"Missing here: {refusal(error, what=resource.plural)}.",),
            unread=_FORBIDDEN if isinstance(error, errors.Forbidden) else _NOT_READ,
        )


async def _slices(client: KubeClient, *, wanted: bool) -> tuple[builtin.ResourceSlice, ...]:
    """Return ResourceSlices, or none if they do not exist or may not be read."""
    if not wanted:
        return ()
    try:
        return (await _read(client, RESOURCE_SLICES, builtin.ResourceSlice, namespace=None)).objects
    except errors.Unauthorized as error:
        raise not_answered(error, what=RESOURCE_SLICES.plural) from None
    # Clusters without DRA do not serve this group, and most users may not read it.
    except errors.KubeError:
        return ()


async def _pods(client: KubeClient, *, own: str, wanted: bool) -> _Listed[PodObject]:
    """Return pods of all namespaces, or of the user's namespace if others may not be read."""
    if not wanted:
        return _Listed()
    try:
        return await _read(client, PODS, PodObject, namespace=None, labels=_FOREIGN)
    # A refusal for all namespaces is not final. The own namespace may be allowed.
    except errors.Forbidden:
        pass
    except errors.Unauthorized as error:
        raise not_answered(error, what="pods") from None
    except errors.KubeError as error:
        return _Listed(remarks=(f"Missing here: {refusal(error, what='pods')}.",))
    # A second refusal is reported as a remark, because jobs alone are still worth showing.
    try:
        listed = await _read(client, PODS, PodObject, namespace=own, labels=_FOREIGN)
    except errors.KubeError as error:
        return _Listed(remarks=(f"Missing here: {refusal(error, what='pods')}.",))
    remark = f"Showing only foreign pods of namespace {own}: you may not read other namespaces."
    return _Listed(objects=listed.objects, remarks=(*listed.remarks, remark))


@dataclass(frozen=True, slots=True, kw_only=True)
class _NamedWorkload:
    pods: tuple[PodObject, ...] = ()
    workloads: Mapping[str, WorkloadObject] = field(default_factory=dict[str, WorkloadObject])


async def _workload(
    client: KubeClient, named: tuple[Resource, str] | None, *, namespace: str
) -> _NamedWorkload:
    if named is None:
        return _NamedWorkload()
    resource, name = named
    try:
        raw = await reads.get(client, resource, name=name, namespace=namespace)
    # A missing workload is reported by the caller, which knows the name that the user typed.
    except errors.NotFound:
        return _NamedWorkload()
    except errors.KubeError as error:
        raise not_answered(error, what=f"{resource.plural} {name!r}") from None
    # The workload keeps the type of its kind. Pods have a decoder of their own.
    if resource is PODS:
        return _NamedWorkload(pods=decoded([raw], PodObject).objects)
    objects = decoded([raw], WorkloadObject).objects
    return _NamedWorkload(
        workloads={f"{namespace}/{resource.plural}/{name}": each for each in objects}
    )


async def _required(
    client: KubeClient, resource: Resource, kind: type[T], *, wanted: bool
) -> _Listed[T]:
    try:
        return await _read(client, resource, kind, namespace=None) if wanted else _Listed()
    except errors.KubeError as error:
        raise not_answered(error, what=resource.plural) from None


async def _read(
    client: KubeClient,
    resource: Resource,
    kind: type[T],
    *,
    namespace: str | None,
    labels: str = "",
) -> _Listed[T]:
    raws = await reads.list_all(client, resource, namespace=namespace, label_selector=labels)
    # A newer server may store objects that this version cannot decode. Count and report them.
    listed = decoded(raws, kind)
    count, plural = listed.unreadable, resource.plural
    remarks = (
        (f"{count} of the {plural} cannot be read by this version of drumline.",) if count else ()
    )
    unread = "may be one that this version of drumline cannot read" if count else ""
    return _Listed(objects=listed.objects, remarks=remarks, unread=unread)


class _Typed(msgspec.Struct, frozen=True):
    kind: str = ""
    items: list[msgspec.Raw] | None = None


def from_documents(
    texts: Sequence[bytes], *, as_of: float, names: Sequence[str] = ()
) -> ClusterObjects:
    """Return the objects in outputs of `kubectl get -o json`.

    Args:
        texts: one output each.
        as_of: Unix time of the outputs in seconds.
        names: the file of each text, for messages.

    Raises:
        BadInput: an object is not valid JSON of Kubernetes.
    """
    by_kind: dict[str, list[bytes]] = {}
    for text, name in zip(texts, names or repeat("a file"), strict=False):
        file = display_name(name)
        if len(text) > MOST_FILE_BYTES:
            raise BadInput(f"{file}: longer than {MOST_FILE_BYTES} bytes")
        for kind, raw in _documents(text, file=file):
            # Objects of several files are merged by kind. `kubectl get` mixes kinds in one list.
            by_kind.setdefault(kind, []).append(raw)
    jobs = decoded(by_kind.get(TRAINING_JOBS.kind, ()), JobObject)
    queues = decoded(by_kind.get(TRAINING_QUEUES.kind, ()), StoredTrainingQueue)
    pools = decoded(by_kind.get(GPU_POOLS.kind, ()), StoredGpuPool)
    nodes = decoded(by_kind.get(NODES.kind, ()), builtin.Node)
    priorities = decoded(by_kind.get(PRIORITY_CLASSES.kind, ()), builtin.PriorityClass)
    slices = decoded(by_kind.get(RESOURCE_SLICES.kind, ()), builtin.ResourceSlice)
    pods = decoded(by_kind.get(PODS.kind, ()), PodObject)
    lists = (jobs, queues, pools, nodes, priorities, slices, pods)
    # One figure for all kinds. Files of other systems contain many objects of no interest.
    unreadable = sum(each.unreadable for each in lists)
    return ClusterObjects(
        as_of=as_of,
        jobs=jobs.objects,
        queues=queues.objects,
        pools=pools.objects,
        nodes=nodes.objects,
        priorities=priorities.objects,
        slices=slices.objects,
        # Pods of jobs are represented by the job. Counting both would double their GPUs.
        pods=tuple(pod for pod in pods.objects if not pod.metadata.label(JOB)),
        workloads={
            f"{each.metadata.namespace}/{resource.plural}/{each.metadata.name}": each
            for resource in WORKLOAD_KINDS
            for each in decoded(by_kind.get(resource.kind, ()), WorkloadObject).objects
        },
        remarks=(f"{unreadable} objects cannot be read by this version of drumline.",)
        if unreadable
        else (),
        # A file without any object of a kind may come from a list without this kind.
        unread={
            resource.kind: "is not in the files, or not readable by you"
            for resource in (TRAINING_QUEUES, GPU_POOLS)
            if resource.kind not in by_kind
        },
    )


def _documents(text: bytes, *, file: str) -> list[tuple[str, bytes]]:
    if not text.strip():
        raise BadInput(f"{file}: the file is empty")
    try:
        document = msgspec.json.decode(text, type=_Typed)
        # An object without `items` is a single object, as `kubectl get KIND NAME` prints it.
        if document.items is None:
            return [(document.kind, text)]
        return [(msgspec.json.decode(raw, type=_Typed).kind, bytes(raw)) for raw in document.items]
    # Deep nesting exhausts the recursion limit of the decoder, so it is treated as bad input.
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadInput(f"{file}: not the output of kubectl get -o json: {error}") from None


def only_job(cluster: ClusterObjects, *, namespace: str, name: str) -> JobObject:
    """Return the job of this name.

    Args:
        cluster: objects that were read.
        namespace: namespace of the job.
        name: name of the job.

    Raises:
        NotAnswered: there is none.
    """
    # Names are unique per namespace, so the key is unique.
    by_key: Mapping[str, JobObject] = {job.key: job for job in cluster.jobs}
    job = by_key.get(f"{namespace}/{name}")
    if job is None:
        raise NotAnswered(f"trainingjob {name!r} not found in namespace {namespace!r}")
    return job
