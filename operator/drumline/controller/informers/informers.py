"""The informers: one cache of API objects for each kind, and for jobs one per namespace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from drumline.kube import codec, device_codec, reads, storage_codec, workloads
from drumline.kube.client import KubeClient
from drumline.kube.device_views import DeviceSliceView, DeviceTaintRuleView, ResourceClaimView
from drumline.kube.errors import Forbidden, KubeError, NotFound, Unreadable
from drumline.kube.informer import Informer, Quarantined, Selection
from drumline.kube.kinds import (
    CSI_DRIVERS,
    CSI_NODES,
    DEVICE_TAINT_RULES,
    GPU_POOLS,
    JOB_SETS,
    JOBS,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    RUNTIME_CLASSES,
    STORAGE_CLASSES,
    TRAINING_JOBS,
    TRAINING_QUEUES,
    Resource,
)
from drumline.kube.suspendable import decoder_of
from drumline.kube.views import (
    ClaimView,
    CsiDriverView,
    CsiNodeView,
    Key,
    NamespaceView,
    NodeView,
    ObjectView,
    PodView,
    PriorityClassView,
    RuntimeClassView,
    StorageClassView,
    TrainingJobView,
    VolumeView,
)
from drumline.kube.workload_kinds import OTHER_KINDS
from drumline.kube.workload_memory import WorkloadDecoder
from drumline.kube.workload_views import WorkloadView
from drumline.scope import InstallationScope
from drumline.telemetry import logs
from drumline.telemetry.metrics import Metrics
from drumline.telemetry.watches import warn_left_out
from drumline_api.base import LABEL_QUEUE

log = logs.get("drumline.controller.informers.informers")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInformers:
    """Informers of Dynamic Resource Allocation."""

    slices: Informer[DeviceSliceView]
    claims: Informer[ResourceClaimView]
    taint_rules: Informer[DeviceTaintRuleView] | None = None
    """None if the API server does not serve them."""

    def all(self) -> tuple[Informer[Any], ...]:
        """Return all informers."""
        rules = () if self.taint_rules is None else (self.taint_rules,)
        return (self.slices, self.claims, *rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeInformers:
    """Informers of volumes, storage classes, claims and the limits of nodes."""

    volumes: Informer[VolumeView]
    classes: Informer[StorageClassView]
    csi_nodes: Informer[CsiNodeView]
    csi_drivers: Informer[CsiDriverView]
    claims: tuple[Informer[ClaimView], ...]
    """One informer for each namespace of the scope, or one for all namespaces."""

    def all(self) -> tuple[Informer[Any], ...]:
        """Return all informers."""
        return (self.volumes, self.classes, self.csi_nodes, self.csi_drivers, *self.claims)


@dataclass(frozen=True, slots=True, kw_only=True)
class Informers:
    """One informer for each kind."""

    jobs: tuple[Informer[TrainingJobView], ...]
    """One informer for each namespace of the scope, or one for all namespaces."""
    queues: Informer[ObjectView]
    pools: Informer[ObjectView]
    pods: Informer[PodView]
    nodes: Informer[NodeView]
    priority_classes: Informer[PriorityClassView]
    namespaces: Informer[NamespaceView]
    runtime_classes: Informer[RuntimeClassView]
    volumes: VolumeInformers
    devices: DeviceInformers | None = None
    """None if Dynamic Resource Allocation is disabled."""
    workloads: tuple[Informer[WorkloadView], ...] = ()
    """Informers of Jobs, JobSets and other workloads that name a queue.

    One for each kind that the API server serves and each namespace of the scope.
    """

    @classmethod
    def of(
        cls, client: KubeClient, *, metrics: Metrics, scope: InstallationScope, devices: bool
    ) -> Informers:
        """Create informers that are not started. They count and skip undecodable objects.

        Args:
            client: client to read with.
            metrics: metrics of watches and skipped objects.
            scope: namespaces and label selector of this installation.
            devices: whether to watch Dynamic Resource Allocation.
        """
        informer = partial(_informer, client, metrics)

        def jobs(namespace: str | None) -> Informer[TrainingJobView]:
            made = informer(
                TRAINING_JOBS,
                codec.training_job,
                selection=Selection(namespace=namespace),
                on_forbidden=_warning_of(namespace),
            )
            # A namespace that cannot be read must show: its jobs would wait without a reason.
            if namespace is not None:
                unreadable = metrics.controller.namespace_unreadable.labels(namespace=namespace)
                unreadable.set_function(lambda: made.is_forbidden)
            return made

        # Queues and pools belong to one installation by its label. Pods and nodes are read whole,
        # because pods of all owners occupy the nodes.
        ours = Selection(label_selector=scope.selector)
        made = cls(
            devices=_of_devices(informer) if devices else None,
            jobs=tuple(map(jobs, scope.reads)),
            queues=informer(TRAINING_QUEUES, codec.custom_object, selection=ours),
            pools=informer(GPU_POOLS, codec.custom_object, selection=ours),
            pods=informer(PODS, codec.pod, in_part=codec.pod_in_part),
            nodes=informer(NODES, codec.node, in_part=codec.node_in_part),
            priority_classes=informer(PRIORITY_CLASSES, codec.priority_class),
            namespaces=informer(NAMESPACES, codec.namespace, on_forbidden=_warn_of_selectors),
            runtime_classes=informer(
                RUNTIME_CLASSES, codec.runtime_class, on_forbidden=_warn_of_runtime_classes
            ),
            volumes=_of_volumes(informer, scope=scope),
        )
        _measure_ages(made, metrics, kinds=made.all())
        return made

    def all(self) -> tuple[Informer[Any], ...]:
        """Return all informers."""
        return (
            *self.jobs,
            self.queues,
            self.pools,
            self.pods,
            self.nodes,
            self.priority_classes,
            self.namespaces,
            self.runtime_classes,
            *self.volumes.all(),
            *(self.devices.all() if self.devices is not None else ()),
            *self.workloads,
        )

    async def with_workloads(
        self,
        client: KubeClient,
        *,
        metrics: Metrics,
        scope: InstallationScope,
        kinds: Iterable[str] = (),
    ) -> Informers:
        """Return these informers with informers of workloads that name a queue.

        Kinds that the API server does not serve now are left out, except batch Jobs.

        Args:
            client: client to read with.
            metrics: metrics of watches.
            scope: namespaces of this installation.
            kinds: names in `OTHER_KINDS` to watch beside Jobs and JobSets.
        """
        # Batch Jobs are always served. All other kinds need a CRD, so look for each of them.
        decoders: dict[Resource, Callable[[bytes], WorkloadView]] = {JOBS: workloads.batch_job}
        optional = {JOB_SETS: workloads.job_set}
        optional |= {OTHER_KINDS[name].resource: decoder_of(OTHER_KINDS[name]) for name in kinds}
        decoders |= {
            resource: decode
            for resource, decode in optional.items()
            if await _is_served(client, resource, namespaces=scope.reads)
        }
        # One informer for each kind and namespace. The label keeps workloads without a queue out.
        made = replace(
            self,
            workloads=tuple(
                _informer(
                    client,
                    metrics,
                    resource,
                    WorkloadDecoder(decode),
                    selection=Selection(namespace=namespace, label_selector=LABEL_QUEUE),
                    on_forbidden=_warning_of(namespace),
                )
                for resource, decode in decoders.items()
                for namespace in scope.reads
            ),
        )
        _measure_ages(made, metrics, kinds=made.workloads)
        return made

    async def with_taint_rules(self, client: KubeClient, *, metrics: Metrics) -> Informers:
        """Return these informers with DeviceTaintRules, if a version of them is served now."""
        if self.devices is None:
            return self
        # Kubernetes 1.37 serves v1, the first of them. 1.36 can serve v1beta2.
        for version in DEVICE_TAINT_RULES:
            if await _is_served(client, version, namespaces=(None,)):
                decode = device_codec.device_taint_rule
                rules = _informer(client, metrics, version, decode, on_forbidden=_warn_of_dra)
                _measure_ages(self, metrics, kinds=(rules,))
                return replace(self, devices=replace(self.devices, taint_rules=rules))
        return self

    async def wait_synced(self) -> None:
        """Wait until every cache has received a whole list."""
        await asyncio.gather(*(informer.wait_synced() for informer in self.all()))

    async def catch_up(self) -> None:
        """Wait until every cache contains all that was written before this call."""
        await asyncio.gather(*(informer.catch_up() for informer in self.all()))

    async def wait_version(self, resource: Resource, key: Key, *, version: str) -> None:
        """Wait until this version of an object is seen. The caller bounds the wait.

        Args:
            resource: the kind.
            key: namespace and name.
            version: resourceVersion that a write returned.
        """
        for each in self.all():
            if each.resource == resource and each.get(key) is not None:
                await each.wait_version(version)

    def silent_seconds(self, kind: str) -> float:
        """Return the seconds since the most silent watch of this kind was heard.

        Infinite before the first event.
        """
        now = time.monotonic()
        return max(
            each.freshness_seconds(now) for each in self.all() if each.resource.plural == kind
        )

    def stale(self, now: float) -> str | None:
        """Return the name of a kind that was not heard for too long, or None.

        Args:
            now: monotonic seconds.
        """
        silences = [informer.silence(now) for informer in self.all()]
        return next((silence for silence in silences if silence is not None), None)


def _measure_ages(
    informers: Informers, metrics: Metrics, *, kinds: Iterable[Informer[Any]]
) -> None:
    """Export the age of the caches of these kinds as gauges."""
    for kind in {each.resource.plural for each in kinds}:
        freshness = metrics.controller.informer_freshness_seconds.labels(resource=kind)
        freshness.set_function(partial(informers.silent_seconds, kind))


def _informer(
    client: KubeClient,
    metrics: Metrics,
    resource: Resource,
    decode: Callable[[bytes], Any],
    *,
    selection: Selection | None = None,
    in_part: Callable[[bytes], Any] | None = None,
    on_forbidden: Callable[[Unreadable], None] | None = None,
) -> Informer[Any]:
    # An object that cannot be decoded is counted, and read in part or skipped. The informer
    # continues.
    def quarantine(document: Quarantined) -> None:
        metrics.controller.poisoned_objects.labels(resource=document.resource.plural).inc()
        warn_left_out(document)

    return Informer(
        client,
        resource,
        decode=decode,
        selection=selection,
        on_quarantine=quarantine,
        in_part=in_part,
        on_forbidden=on_forbidden,
    )


def _warning_of(namespace: str | None) -> Callable[[Unreadable], None] | None:
    """Return the log callback for an informer of one namespace, or None for a cluster-wide one.

    A single namespace can become unreadable while the others stay readable.
    """
    return None if namespace is None else partial(_warn, namespace)


def _warn(namespace: str, error: Unreadable) -> None:
    """Log that a namespace cannot be read.

    A deleted namespace takes the operator's Role with it. The other namespaces continue.
    """
    log.warning("namespace_unreadable", namespace=namespace, why=error.message)


def _of_devices(informer: Callable[..., Informer[Any]]) -> DeviceInformers:
    slices, claims = device_codec.device_slice, device_codec.resource_claim
    return DeviceInformers(
        slices=informer(RESOURCE_SLICES, slices, on_forbidden=_warn_of_dra),
        claims=informer(
            RESOURCE_CLAIMS,
            claims,
            in_part=device_codec.resource_claim_in_part,
            on_forbidden=_warn_of_dra,
        ),
    )


def _of_volumes(
    informer: Callable[..., Informer[Any]], *, scope: InstallationScope
) -> VolumeInformers:
    claims = partial(
        informer,
        PERSISTENT_VOLUME_CLAIMS,
        storage_codec.persistent_volume_claim,
        in_part=storage_codec.persistent_volume_claim_in_part,
        on_forbidden=_warn_of_volumes,
    )
    return VolumeInformers(
        volumes=informer(
            PERSISTENT_VOLUMES,
            storage_codec.persistent_volume,
            in_part=storage_codec.persistent_volume_in_part,
            on_forbidden=_warn_of_volumes,
        ),
        classes=informer(
            STORAGE_CLASSES, storage_codec.storage_class, on_forbidden=_warn_of_volumes
        ),
        csi_nodes=informer(CSI_NODES, storage_codec.csi_node, on_forbidden=_warn_of_volumes),
        csi_drivers=informer(CSI_DRIVERS, storage_codec.csi_driver, on_forbidden=_warn_of_volumes),
        claims=tuple(claims(selection=Selection(namespace=namespace)) for namespace in scope.reads),
    )


def _warn_of_volumes(error: Unreadable) -> None:
    """Log that volumes cannot be read: jobs are placed without regard to their volumes."""
    log.warning("volumes_unreadable", why=error.message)


def _warn_of_runtime_classes(error: Unreadable) -> None:
    """Warn that RuntimeClasses are unreadable. Their overhead is learned from the first pod."""
    log.warning("runtime_classes_unreadable", why=error.message)


def _warn_of_dra(error: Unreadable) -> None:
    """Log that devices cannot be read. An API server without resource.k8s.io/v1 has no devices."""
    log.warning("devices_unreadable", why=error.message)


def _warn_of_selectors(error: Unreadable) -> None:
    """Log that namespaces cannot be read.

    Queues are then open only to the namespaces that they list by name.
    """
    log.warning("namespace_labels_unreadable", why=error.message)


async def _is_served(
    client: KubeClient, resource: Resource, *, namespaces: Iterable[str | None]
) -> bool:
    """Return whether the API server serves a kind.

    The first namespace that may be read decides. A kind counts as not served if none may be read.
    """
    for namespace in namespaces:
        try:
            await reads.newest_version(client, resource, namespace=namespace, query={})
        except NotFound:
            return False
        except Forbidden as error:
            log.warning("kind_not_read", resource=resource.plural, error=error.message)
            continue
        except KubeError:  # the informer tries again
            return True
        return True
    return False
