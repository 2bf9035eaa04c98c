"""The informers: one cache of the API server's objects for each kind, of jobs one a namespace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from drumline.kube import codec, device_codec, reads, workloads
from drumline.kube.client import KubeClient
from drumline.kube.device_views import DeviceSliceView, DeviceTaintRuleView, ResourceClaimView
from drumline.kube.errors import Forbidden, KubeError, NotFound, Unreadable
from drumline.kube.informer import Informer, Quarantined, Selection
from drumline.kube.kinds import (
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
    STORAGE_CLASSES,
    TRAINING_JOBS,
    TRAINING_QUEUES,
    Resource,
)
from drumline.kube.reads import LARGE_OBJECTS_PAGE
from drumline.kube.suspendable import decoder_of
from drumline.kube.views import (
    ClaimView,
    Key,
    NamespaceView,
    NodeView,
    ObjectView,
    PodView,
    PriorityClassView,
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
from drumline_api.base import LABEL_QUEUE

log = logs.get("drumline.controller.informers.informers")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInformers:
    """Of Dynamic Resource Allocation."""

    slices: Informer[DeviceSliceView]
    claims: Informer[ResourceClaimView]
    taint_rules: Informer[DeviceTaintRuleView] | None = None
    """None: the API server does not serve them."""

    def all(self) -> tuple[Informer[Any], ...]:
        """All of them."""
        rules = () if self.taint_rules is None else (self.taint_rules,)
        return (self.slices, self.claims, *rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeInformers:
    """Cache of volumes, and of the claims that are bound to them."""

    volumes: Informer[VolumeView]
    classes: Informer[StorageClassView]
    claims: tuple[Informer[ClaimView], ...]
    """One for each namespace of the scope, or one for all."""

    def all(self) -> tuple[Informer[Any], ...]:
        """All of them."""
        return (self.volumes, self.classes, *self.claims)


@dataclass(frozen=True, slots=True, kw_only=True)
class Informers:
    """One cache a kind."""

    jobs: tuple[Informer[TrainingJobView], ...]
    """One for each namespace of the scope, or one for all."""
    queues: Informer[ObjectView]
    pools: Informer[ObjectView]
    pods: Informer[PodView]
    nodes: Informer[NodeView]
    priority_classes: Informer[PriorityClassView]
    namespaces: Informer[NamespaceView]
    volumes: VolumeInformers
    devices: DeviceInformers | None = None
    """None: Dynamic Resource Allocation is not looked at."""
    workloads: tuple[Informer[WorkloadView], ...] = ()
    """Jobs and JobSets that name a queue, where they wait for it; one for each kind and namespace
    of the scope."""

    @classmethod
    def of(
        cls, client: KubeClient, *, metrics: Metrics, scope: InstallationScope, devices: bool
    ) -> Informers:
        """Caches that have not started yet; undecodable objects are counted and left out."""
        informer = partial(_informer, client, metrics)

        def jobs(namespace: str | None) -> Informer[TrainingJobView]:
            made = informer(
                TRAINING_JOBS,
                codec.training_job,
                selection=Selection(namespace=namespace),
                on_forbidden=_warning_of(namespace),
                page_limit=LARGE_OBJECTS_PAGE,
            )
            if namespace is not None:
                unreadable = metrics.controller.namespace_unreadable.labels(namespace=namespace)
                unreadable.set_function(lambda: made.is_forbidden)
            return made

        ours = Selection(label_selector=scope.selector)
        made = cls(
            devices=_of_devices(informer) if devices else None,
            jobs=tuple(map(jobs, scope.reads)),
            queues=informer(TRAINING_QUEUES, codec.custom_object, selection=ours),
            pools=informer(GPU_POOLS, codec.custom_object, selection=ours),
            pods=informer(PODS, codec.pod),
            nodes=informer(NODES, codec.node),
            priority_classes=informer(PRIORITY_CLASSES, codec.priority_class),
            namespaces=informer(NAMESPACES, codec.namespace, on_forbidden=_warn_of_selectors),
            volumes=_of_volumes(informer, scope=scope),
        )
        _measure_ages(made, metrics, kinds=made.all())
        return made

    def all(self) -> tuple[Informer[Any], ...]:
        """All of them."""
        return (
            *self.jobs,
            self.queues,
            self.pools,
            self.pods,
            self.nodes,
            self.priority_classes,
            self.namespaces,
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
        """With Jobs that name a queue, and with the others where they are served now.

        Args:
            client: to read with.
            metrics: of watches.
            scope: the namespaces.
            kinds: which of `OTHER_KINDS` wait beside Jobs and JobSets.
        """
        decoders: dict[Resource, Callable[[bytes], WorkloadView]] = {JOBS: workloads.batch_job}
        optional = {JOB_SETS: workloads.job_set}
        optional |= {OTHER_KINDS[name].resource: decoder_of(OTHER_KINDS[name]) for name in kinds}
        decoders |= {
            resource: decode
            for resource, decode in optional.items()
            if await _is_served(client, resource, namespaces=scope.reads)
        }
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
                    page_limit=LARGE_OBJECTS_PAGE,
                )
                for resource, decode in decoders.items()
                for namespace in scope.reads
            ),
        )
        _measure_ages(made, metrics, kinds=made.workloads)
        return made

    async def with_taint_rules(self, client: KubeClient, *, metrics: Metrics) -> Informers:
        """With DeviceTaintRules where devices are looked at and a version of them is served now."""
        if self.devices is None:
            return self
        for version in DEVICE_TAINT_RULES:
            if await _is_served(client, version, namespaces=(None,)):
                decode = device_codec.device_taint_rule
                rules = _informer(client, metrics, version, decode, on_forbidden=_warn_of_dra)
                _measure_ages(self, metrics, kinds=(rules,))
                return replace(self, devices=replace(self.devices, taint_rules=rules))
        return self

    async def wait_synced(self) -> None:
        """Return once every cache has taken in a whole list."""
        await asyncio.gather(*(informer.wait_synced() for informer in self.all()))

    async def catch_up(self) -> None:
        """Return when all that was written before this call is part of every cache."""
        await asyncio.gather(*(informer.catch_up() for informer in self.all()))

    async def wait_version(self, resource: Resource, key: Key, *, version: str) -> None:
        """Return once this version of an object is seen; the caller bounds the wait."""
        for each in self.all():
            if each.resource == resource and each.get(key) is not None:
                await each.wait_version(version)

    def silent_seconds(self, kind: str) -> float:
        """How long the most silent watch of this kind was not heard of; inf before the first."""
        now = time.monotonic()
        return max(
            each.freshness_seconds(now) for each in self.all() if each.resource.plural == kind
        )

    def stale(self, now: float) -> str | None:
        """The name of a kind not heard of for too long (monotonic `now`), else None."""
        silences = [informer.silence(now) for informer in self.all()]
        return next((silence for silence in silences if silence is not None), None)


def _measure_ages(
    informers: Informers, metrics: Metrics, *, kinds: Iterable[Informer[Any]]
) -> None:
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
    on_forbidden: Callable[[Unreadable], None] | None = None,
    page_limit: int = 500,
) -> Informer[Any]:
    def quarantine(document: Quarantined) -> None:
        metrics.controller.poisoned_objects.labels(resource=document.resource.plural).inc()
        log.warning(
            "object_left_out",
            resource=document.resource.plural,
            key="/".join(document.key) if document.key else None,
            why=document.reason,
        )

    return Informer(
        client,
        resource,
        decode=decode,
        selection=selection,
        on_quarantine=quarantine,
        on_forbidden=on_forbidden,
        page_limit=page_limit,
    )


def _warning_of(namespace: str | None) -> Callable[[Unreadable], None] | None:
    """For an informer of one namespace: it may come to be unreadable by itself."""
    return None if namespace is None else partial(_warn, namespace)


def _warn(namespace: str, error: Unreadable) -> None:
    """A namespace that was deleted took the operator's Role along; the others go on."""
    log.warning("namespace_unreadable", namespace=namespace, why=error.message)


def _of_devices(informer: Callable[..., Informer[Any]]) -> DeviceInformers:
    slices, claims = device_codec.device_slice, device_codec.resource_claim
    return DeviceInformers(
        slices=informer(RESOURCE_SLICES, slices, on_forbidden=_warn_of_dra),
        claims=informer(RESOURCE_CLAIMS, claims, on_forbidden=_warn_of_dra),
    )


def _of_volumes(
    informer: Callable[..., Informer[Any]], *, scope: InstallationScope
) -> VolumeInformers:
    claims = partial(
        informer,
        PERSISTENT_VOLUME_CLAIMS,
        codec.persistent_volume_claim,
        on_forbidden=_warn_of_volumes,
    )
    return VolumeInformers(
        volumes=informer(
            PERSISTENT_VOLUMES, codec.persistent_volume, on_forbidden=_warn_of_volumes
        ),
        classes=informer(STORAGE_CLASSES, codec.storage_class, on_forbidden=_warn_of_volumes),
        claims=tuple(claims(selection=Selection(namespace=namespace)) for namespace in scope.reads),
    )


def _warn_of_volumes(error: Unreadable) -> None:
    """With rights of before: jobs are placed without regard to where their volumes are."""
    log.warning("volumes_unreadable", why=error.message)


def _warn_of_dra(error: Unreadable) -> None:
    """An API server without resource.k8s.io/v1: there are no devices."""
    log.warning("devices_unreadable", why=error.message)


def _warn_of_selectors(error: Unreadable) -> None:
    """With rights of before: queues are open to the namespaces alone that they name."""
    log.warning("namespace_labels_unreadable", why=error.message)


async def _is_served(
    client: KubeClient, resource: Resource, *, namespaces: Iterable[str | None]
) -> bool:
    """Whether there is this kind, as far as any of the namespaces may be read."""
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
