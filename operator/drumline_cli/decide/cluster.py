"""Build a cluster from plain manifests, with the operator's own decoders.

The result is the content of the operator's caches. These kinds count: nodes, pods, queues, pools,
priority classes, namespaces, jobs, workloads that name a queue, and the devices of nodes. Other
kinds are skipped. If an object exists twice, the later one counts, as with `kubectl apply`. A
manifest that was never applied gets a uid and the current time as its creation time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, TypeVar, cast

import msgspec

from drumline.controller.jobs.conversion import job_of
from drumline.controller.nodes.health_signals import health_of, set_standings, standings
from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state.cluster import ClusterCache
from drumline.controller.state.snapshots import SnapshotBuilder
from drumline.kube import codec, storage_codec, workloads
from drumline.kube.device_codec import device_slice, device_taint_rule, resource_claim
from drumline.kube.kinds import (
    DEVICE_TAINT_RULES,
    JOB_SETS,
    JOBS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from drumline.kube.suspendable import decoder_of
from drumline.kube.views import PodView
from drumline.kube.workload_kinds import OTHER_KINDS
from drumline.kube.workload_views import WorkloadView
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.timestamps import parse_timestamp, timestamp
from drumline.lifecycle.model.verdict import Schedulable
from drumline.lifecycle.plan.acceptance import refusal_of
from drumline.overview.rows import OverrideRow
from drumline.scope import InstallationScope
from drumline.settings import Settings
from drumline_api.base import GROUP, LABEL_NODE_DEMAND, LABEL_QUEUE, VERSION, ApiModel
from drumline_api.gpupool import GpuPool, GpuPoolSpec
from drumline_api.load import ApiError, parse
from drumline_api.objects.custom import StoredTrainingQueue
from drumline_api.trainingjob import TrainingJob
from drumline_api.trainingqueue import TrainingQueue, TrainingQueueSpec
from drumline_cli.decide.installation import NOT_KNOWN, Installation, labels_of
from drumline_cli.decide.node_demands import KnownDemands, known_demands
from drumline_cli.decide.overrides import bills_before
from drumline_cli.errors import BadInput
from drumline_cli.manifests import Json, ManifestDocument
from drumline_cli.validation import ServerRefusal, refusals
from drumline_contract import Progress
from drumline_scheduler.forecast.expected_starts import ExpectedStart
from drumline_scheduler.model import Gang, Policy, Snapshot

T = TypeVar("T")

DEFAULT_POLICY: Final = Policy()

_TAINT_RULES: Final = DEVICE_TAINT_RULES[0]
"""The group and kind are those of every version."""

# Built-in kinds and ours, by group. A kind of the same name in a foreign group is ignored.
_GROUPS: Final = {
    "CSIDriver": "storage.k8s.io",
    "CSINode": "storage.k8s.io",
    "Namespace": "",
    "Node": "",
    "Pod": "",
    "PersistentVolume": "",
    "PersistentVolumeClaim": "",
    "PriorityClass": "scheduling.k8s.io",
    "RuntimeClass": "node.k8s.io",
    "StorageClass": "storage.k8s.io",
    GpuPool.KIND: GROUP,
    TrainingQueue.KIND: GROUP,
    TrainingJob.KIND: GROUP,
    JOBS.kind: JOBS.group,
    JOB_SETS.kind: JOB_SETS.group,
    RESOURCE_SLICES.kind: RESOURCE_SLICES.group,
    RESOURCE_CLAIMS.kind: RESOURCE_CLAIMS.group,
    _TAINT_RULES.kind: _TAINT_RULES.group,
    **{name: kind.resource.group for name, kind in OTHER_KINDS.items()},
}
_CLUSTER_SCOPED: Final = frozenset({TrainingQueue.KIND, GpuPool.KIND})
_NAMESPACED: Final = frozenset(
    {
        "Pod",
        "PersistentVolumeClaim",
        TrainingJob.KIND,
        JOBS.kind,
        JOB_SETS.kind,
        RESOURCE_CLAIMS.kind,
        *OTHER_KINDS,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenStart:
    """The expected start that the operator has written to a waiting job's status."""

    reason: str
    """Why the job waited then."""
    start: ExpectedStart


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJobs:
    """The jobs of some manifests, so that they can be read again beside other objects."""

    by_manifest: Mapping[int, tuple[ManifestDocument, Job]] = field(
        default_factory=dict[int, tuple[ManifestDocument, Job]]
    )
    """Jobs with the manifest they were read from, by identity of the manifest."""
    builder: SnapshotBuilder | None = None
    """The builder of their gangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInput:
    """The input of one scheduling cycle."""

    snapshot: Snapshot
    pending: tuple[Gang, ...]
    as_of: float
    """When the newest of the files was written."""
    node_demands: KnownDemands = field(default_factory=KnownDemands)
    """Requests to autoscalers."""
    unreadable: tuple[str, ...] = ()
    """Objects that cannot be read, by file, line and field."""
    remarks: tuple[str, ...] = ()
    """Waiting jobs that no cycle considers, with the reason; what is not known here."""
    broken: bool = False
    """Whether the operator would refuse a job that is not stored yet."""
    written: Mapping[str, WrittenStart] = field(default_factory=dict[str, WrittenStart])
    """Expected starts in the statuses of waiting jobs, by uid."""
    overrides: tuple[OverrideRow, ...] = ()
    """Jobs that may preempt within the guarantee of other queues, with their bills."""
    known_jobs: KnownJobs = field(default_factory=KnownJobs, compare=False, repr=False)


def read(
    manifests: Sequence[ManifestDocument],
    *,
    installation: Installation = NOT_KNOWN,
    policy: Policy = DEFAULT_POLICY,
    earlier: KnownJobs | None = None,
) -> ClusterInput:
    """Return the cluster that these objects make.

    An invalid object is reported with file, line and field. The other objects still count, because
    one invalid object must not prevent an answer. The operator does the same.

    Args:
        manifests: the objects.
        installation: the settings of the operator.
        policy: policy of the operator, with the time for which it waits for pods that hang.
        earlier: jobs of an earlier call with the same pools. Those of the same manifests are used
            again.

    Raises:
        BadInput: the objects do not fit together.
    """
    accepted, unreadable = _accepted(manifests)
    known = _by_name(accepted)
    installation = installation.judged(known.values())
    as_of = max((manifest.as_of for manifest in manifests), default=0.0)
    jobs: dict[str, Job] = {}
    state = _empty_state(
        installation, policy=policy, now=as_of, progress=lambda uid: _progress(jobs[uid])
    )
    # Phase 1: pass each accepted object to the caches, in the order of the files.
    placeholders: list[PodView] = []
    read_jobs: dict[int, ManifestDocument] = {}
    earlier = earlier or KnownJobs()
    for manifest in filter(installation.reads, known.values()):
        same = earlier.by_manifest.get(id(manifest))
        if same is not None and same[0] is manifest:
            state.jobs.adopt(same[1])
            read_jobs[id(manifest)] = manifest
            continue
        try:
            if _asks_for_nodes(manifest):
                placeholders.append(_decoded(manifest, codec.pod_manifest))
            _TAKE[manifest.kind](state, manifest)
            if manifest.kind == TrainingJob.KIND:
                read_jobs[id(manifest)] = manifest
        except BadInput as error:
            unreadable.append(str(error))
    # Phase 2: restore state that the operator keeps in statuses: budgets and interruptions.
    state.budgets.restore(_statuses(known.values(), kind=TrainingQueue.KIND))
    state.observe_budgets(now=as_of)
    pools = _statuses(known.values(), kind=GpuPool.KIND)
    state.interruptions.restore(pools, policy=Policy())
    set_standings(state.nodes, standings(map(health_of, pools.values()), now=as_of))
    demands = known_demands(state, placeholders=placeholders, statuses=pools)
    jobs.update((job.uid, job) for job in state.jobs.all())
    # Phase 3: take the snapshot that a scheduling cycle would get.
    if earlier.builder is not None:
        state.scheduling.adopt(earlier.builder)
    try:
        snapshot, pending = state.scheduling.snapshot(now=as_of), tuple(state.scheduling.pending())
        snapshot = demands.shown_to(snapshot, now=as_of)
    except ValueError as error:
        raise BadInput(f"the objects are inconsistent: {error}") from None
    return ClusterInput(
        snapshot=snapshot,
        pending=pending,
        as_of=as_of,
        node_demands=demands,
        unreadable=tuple(unreadable),
        remarks=tuple(_remarks(state, installation)),
        broken=_would_be_refused(state, known),
        written={job.uid: _written(job) for job in jobs.values() if job.status.expected_start},
        overrides=bills_before(
            _stored_queues(known.values()), snapshot=snapshot, pending=pending, now=as_of
        ),
        known_jobs=_known_jobs(state, read_jobs.values()),
    )


def _known_jobs(state: ClusterCache, manifests: Iterable[ManifestDocument]) -> KnownJobs:
    """Return the jobs that were read without an error, with their manifests."""
    jobs = ((each, state.jobs.get("/".join(each.namespaced_name))) for each in manifests)
    return KnownJobs(
        by_manifest={
            id(each): (each, job)
            for each, job in jobs
            if job is not None and isinstance(job.verdict, Schedulable)
        },
        builder=state.scheduling,
    )


def _stored_queues(manifests: Iterable[ManifestDocument]) -> list[StoredTrainingQueue]:
    """Return the queues that can be read, with their statuses."""
    queues: list[StoredTrainingQueue] = []
    for manifest in manifests:
        if manifest.kind == TrainingQueue.KIND:
            with suppress(msgspec.ValidationError):
                queues.append(msgspec.convert(_completed(manifest), StoredTrainingQueue))
    return queues


def _by_name(
    manifests: Iterable[ManifestDocument],
) -> Mapping[tuple[str, str, str], ManifestDocument]:
    """Return the manifests of kinds that count, by kind, namespace and name."""
    # A dictionary keeps the last entry of each key, as `kubectl apply` would.
    return {
        (manifest.kind, *manifest.namespaced_name): manifest
        for manifest in manifests
        if _GROUPS.get(manifest.kind) == manifest.group
    }


def _written(job: Job) -> WrittenStart:
    # Forecasts in a status are timestamps. Both may be absent while the job waits.
    early, late = job.status.expected_start, job.status.expected_start_by
    start = ExpectedStart(
        key=job.key,
        uid=job.uid,
        p50_at=None if early is None else parse_timestamp(early),
        p90_at=None if late is None else parse_timestamp(late),
    )
    return WrittenStart(reason=job.status.reason or "", start=start)


def _would_be_refused(
    state: ClusterCache, known: Mapping[tuple[str, str, str], ManifestDocument]
) -> bool:
    """Return whether the operator would reject a job that is not stored yet."""
    # A stored job was accepted by a server once, perhaps by a version with other rules.
    keys = ((TrainingJob.KIND, job.namespace, job.name) for job in _refused(state))
    # Names are shown as plain text, so that of an invalid job may differ from the file's.
    return any(key not in known or not _is_stored(known[key]) for key in keys)


def _accepted(
    manifests: Sequence[ManifestDocument],
) -> tuple[list[ManifestDocument], list[str]]:
    """Return the objects that the API server stores, and why it refuses the others.

    An object that a server has printed is stored already, perhaps by an older version.
    """
    accepted: list[ManifestDocument] = []
    unreadable: list[str] = []
    # Each refusal names its file, line and field, so that a user can fix all of them at once.
    for manifest in manifests:
        refused = [] if _is_stored(manifest) else _refusals(manifest)
        for refusal in refused:
            problem = f"{_title(manifest)}: {refusal}"
            unreadable.append(str(manifest.blame(refusal.path, problem)))
        if not refused:
            accepted.append(manifest)
    return accepted, unreadable


def _refusals(manifest: ManifestDocument) -> list[ServerRefusal]:
    """Return why an object that a person wrote is refused, or would be left out by mistake."""
    group, kind = manifest.group, manifest.kind
    if not manifest.raw.get("kind"):
        return [ServerRefusal("kind", "Required value: the object has no kind")]
    if _GROUPS.get(kind) == GROUP != group:
        return [ServerRefusal("apiVersion", f"{kind} is a kind of {GROUP}/{VERSION}; write that")]
    refused = refusals(manifest.raw)
    if not refused and group == GROUP and not manifest.namespaced_name[1]:
        return [ServerRefusal("metadata", "decide needs metadata.name in place of generateName")]
    return refused


def _title(manifest: ManifestDocument) -> str:
    """Return the name of an object, with its namespace if the kind has one."""
    namespace, name = manifest.namespaced_name
    return name if manifest.kind in _CLUSTER_SCOPED else f"{namespace}/{name}"


def _is_stored(manifest: ManifestDocument) -> bool:
    # Only a server sets `resourceVersion`. Its presence shows that the object was stored.
    metadata = manifest.raw.get("metadata")
    return isinstance(metadata, dict) and "resourceVersion" in metadata


def _empty_state(
    installation: Installation,
    *,
    policy: Policy,
    now: float,
    progress: Callable[[str], Progress | None],
) -> ClusterCache:
    # A fixed clock makes the result depend on the files alone.
    nodes = NodeCache(clock=lambda: now, overdue_seconds=policy.overdue_seconds)
    nodes.volumes.has_all_claims = True
    return ClusterCache(
        nodes=nodes,
        progress=progress,
        scope=InstallationScope.of(Settings()),  # no object says where the operator runs
        admits_workloads=bool(installation.admits_workloads),
        guarded_pools=installation.guarded_pools,
    )


def _statuses(manifests: Iterable[ManifestDocument], *, kind: str) -> Mapping[str, Json]:
    # A status may have a newer format. Readers of the status check its content.
    """Return statuses by name. They contain the usage of queues and the evidence against nodes."""
    return {
        manifest.namespaced_name[1]: cast("Json", status)
        for manifest in manifests
        if manifest.kind == kind
        if isinstance(status := manifest.raw.get("status"), dict)
    }


def _asks_for_nodes(manifest: ManifestDocument) -> bool:
    return manifest.kind == "Pod" and LABEL_NODE_DEMAND in labels_of(manifest)


def _remarks(state: ClusterCache, installation: Installation) -> list[str]:
    # Reasons from the scheduler and from the controller are merged, because users see one list.
    classless = [
        f"{job.key}: PriorityClassNotFound: {job.spec.priority_class_name} does not exist"
        for job in state.scheduling.jobs_without_priority_class()
    ]
    refused = [
        f"{job.key}: InvalidConfig: {refusal.message}"
        for job in _refused(state)
        if (refusal := refusal_of(job)) is not None
    ]
    waiting = state.workloads.explain((), queues={}) if state.workloads else ()
    unfit = [f"{each.workload.key}: {each.reason}: {each.message}" for each in waiting]
    not_counted = [] if state.nodes.devices.are_known else _uncounted(state)
    said = (_unselected(state), not_counted, _unguarded(state, installation))
    return sorted([*classless, *refused, *unfit, *chain.from_iterable(said)])


def _refused(state: ClusterCache) -> list[Job]:
    return [
        # A running job keeps its nodes even if a newer operator would refuse its spec.
        job
        for job in state.jobs.all()
        if job.status.assignment is None and not job.finished and not job.unreadable
        if refusal_of(job) is not None
    ]


def _unselected(state: ClusterCache) -> list[str]:
    """Return warnings about queues with a selector, if no Namespace is known."""
    # Without Namespace objects, a selector matches nothing. Users need a warning about this.
    if state.namespaces.are_known:
        return []
    return [
        f"queue {name}: its namespaceSelector selects no namespace, because the objects contain"
        " no Namespace"
        for name, spec in state.queues.by_name.items()
        if spec.namespace_selector is not None
    ]


def _uncounted(state: ClusterCache) -> list[str]:
    """Return warnings about pools of DRA devices, if there are no ResourceSlices."""
    return [
        f"pool {name}: its GPUs are devices of {spec.devices.driver} (DRA), but the objects"
        " contain no ResourceSlice. Here the pool has no GPUs, so ignore the decisions about its"
        " jobs"
        for name, spec in state.pools.by_name.items()
        if spec.devices is not None
    ]


def _unguarded(state: ClusterCache, installation: Installation) -> list[str]:
    """Return the queues whose pods are victims only in guarded pools, if those are unknown."""
    # Only the chart's values contain the list of guarded pools. No object in the cluster has it.
    if installation.guarded_pools is not None:
        return []
    return [
        f"queue {name}: its foreign pods give back borrowed GPUs only in guarded pools. All of"
        " its pools are treated as guarded. Pass the chart's values with --policy to use its"
        " guardedPools"
        for name, spec in state.queues.by_name.items()
        if spec.foreign_pods.borrowed == "Evict"
    ]


def _progress(job: Job) -> Progress | None:
    """Return the job's last progress by its status: no agent can be asked here."""
    # `totalSteps` may be unknown. Zero then means that no end can be computed.
    if job.status.step is None:
        return None
    return Progress(
        step=job.status.step,
        total_steps=job.status.total_steps or 0,
        tokens_per_second=job.status.tokens_per_second,
    )


def _job(state: ClusterCache, manifest: ManifestDocument) -> None:
    view = _decoded(manifest, codec.training_job)
    # The cache accepts a job with a broken spec, because its pods still hold GPUs.
    state.on_job(None, view)  # what can be read of it counts
    try:
        # This second, strict parse finds the exact field for the message.
        job_of(view)
    except ApiError as error:
        raise manifest.blame(error.path, f"{view.namespace}/{view.name}: {error}") from None
    except ValueError as error:
        path = "metadata.creationTimestamp"
        raise manifest.blame(path, f"{path}: {error}") from None


def _queue(state: ClusterCache, manifest: ManifestDocument) -> None:
    view = _decoded(manifest, codec.custom_object)
    # The cache would only return the problem. This check adds the file, line and field.
    _check(manifest, TrainingQueueSpec, view.spec)
    state.on_queue(None, view)


def _pool(state: ClusterCache, manifest: ManifestDocument) -> None:
    view = _decoded(manifest, codec.custom_object)
    # Without a valid spec the pool selects no node, so the user must see this error.
    _check(manifest, GpuPoolSpec, view.spec)
    state.on_pool(None, view)


def _namespace(state: ClusterCache, manifest: ManifestDocument) -> None:
    state.namespaces.on_namespace(None, _decoded(manifest, codec.namespace))


def _node(state: ClusterCache, manifest: ManifestDocument) -> None:
    state.nodes.on_node(None, _decoded(manifest, codec.node))


def _pod(state: ClusterCache, manifest: ManifestDocument) -> None:
    state.on_pod(None, _decoded(manifest, codec.pod_manifest))


def _priority_class(state: ClusterCache, manifest: ManifestDocument) -> None:
    state.on_priority_class(None, _decoded(manifest, codec.priority_class))


def _volume(state: ClusterCache, manifest: ManifestDocument) -> None:
    state.volumes.on_volume(None, _decoded(manifest, storage_codec.persistent_volume))


def _volume_claim(state: ClusterCache, manifest: ManifestDocument) -> None:
    state.volumes.on_claim(None, _decoded(manifest, storage_codec.persistent_volume_claim))


def _csi_node(state: ClusterCache, manifest: ManifestDocument) -> None:
    state.volumes.csi.on_node(None, _decoded(manifest, storage_codec.csi_node))


def _csi_driver(state: ClusterCache, manifest: ManifestDocument) -> None:
    state.volumes.csi.on_driver(None, _decoded(manifest, storage_codec.csi_driver))


def _runtime_class(state: ClusterCache, manifest: ManifestDocument) -> None:
    state.on_runtime_class(None, _decoded(manifest, codec.runtime_class))


def _storage_class(state: ClusterCache, manifest: ManifestDocument) -> None:
    state.volumes.on_storage_class(None, _decoded(manifest, storage_codec.storage_class))


_WORKLOADS: Final[Mapping[str, tuple[Resource, Callable[[bytes], WorkloadView]]]] = {
    JOBS.kind: (JOBS, workloads.batch_job),
    JOB_SETS.kind: (JOB_SETS, workloads.job_set),
    **{name: (kind.resource, decoder_of(kind)) for name, kind in OTHER_KINDS.items()},
}


def _workload(state: ClusterCache, manifest: ManifestDocument) -> None:
    """Return the workload if it names a queue, because the operator reads only those."""
    if LABEL_QUEUE in labels_of(manifest):
        resource, decode = _WORKLOADS[manifest.kind]
        state.on_workload(resource, None, _decoded(manifest, decode))


def _slice(state: ClusterCache, manifest: ManifestDocument) -> None:
    # The node cache recounts GPUs only when a device object of the node changed.
    nodes = state.nodes
    nodes.devices_changed(nodes.devices.on_slice(None, _decoded(manifest, device_slice)))


def _claim(state: ClusterCache, manifest: ManifestDocument) -> None:
    nodes = state.nodes
    nodes.devices_changed(nodes.devices.on_claim(None, _decoded(manifest, resource_claim)))


def _taint_rule(state: ClusterCache, manifest: ManifestDocument) -> None:
    nodes = state.nodes
    nodes.devices_changed(nodes.devices.on_taint_rule(None, _decoded(manifest, device_taint_rule)))


_TAKE: Final[Mapping[str, Callable[[ClusterCache, ManifestDocument], None]]] = {
    "CSIDriver": _csi_driver,
    "CSINode": _csi_node,
    "Namespace": _namespace,
    "Node": _node,
    "Pod": _pod,
    "PersistentVolume": _volume,
    "PersistentVolumeClaim": _volume_claim,
    "PriorityClass": _priority_class,
    "RuntimeClass": _runtime_class,
    "StorageClass": _storage_class,
    GpuPool.KIND: _pool,
    TrainingQueue.KIND: _queue,
    TrainingJob.KIND: _job,
    **dict.fromkeys(_WORKLOADS, _workload),
    RESOURCE_SLICES.kind: _slice,
    RESOURCE_CLAIMS.kind: _claim,
    _TAINT_RULES.kind: _taint_rule,
}


def _check(manifest: ManifestDocument, model: type[ApiModel], spec: Mapping[str, Any]) -> None:
    try:
        parse(model, spec, at="spec")
    except ApiError as error:
        raise manifest.blame(error.path, str(error)) from None


def _decoded(manifest: ManifestDocument, decode: Callable[[bytes], T]) -> T:
    try:
        # The decoder is the operator's, and it reads bytes. One more encoding keeps both identical.
        return decode(json.dumps(_completed(manifest)).encode())
    except RecursionError:
        name = _title(manifest)
        raise manifest.blame("", f"{manifest.kind} {name} is nested too deep to read") from None
    except codec.Undecodable as error:
        # msgspec reports the path at the end of its message. The line in the file needs this path.
        problem, separator, field = str(error).rpartition(" - at `$.")
        path = field.rstrip("`") if separator else ""
        raise manifest.blame(path, f"{path}: {problem}" if separator else str(error)) from None


def _completed(manifest: ManifestDocument) -> Json:
    """Return the object with what the API server would have added."""
    metadata: object = manifest.raw.get("metadata")
    # `uid` and `creationTimestamp` are required by the decoders, but no manifest contains them.
    if not isinstance(metadata, dict):
        return manifest.raw  # the decoder says so
    namespace, name = manifest.namespaced_name
    made = {"uid": f"{namespace}/{name}", "creationTimestamp": timestamp(manifest.as_of)}
    if manifest.kind in _NAMESPACED:
        made["namespace"] = namespace
    # Own fields win over defaults, so objects from a cluster keep their uids.
    return {**manifest.raw, "metadata": {**made, **cast("Json", metadata)}}
