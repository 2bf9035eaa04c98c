"""The modes ProvisioningRequest and CapacityBuffer: objects that name PodTemplates.

A demand's objects are withdrawn before the first pod of its gang is bound. cluster-autoscaler keeps
booked nodes for a request although pods are bound to them, and it refills a buffer that is used. A
booking ends after ten minutes (condition BookingExpired). A request whose nodes are missing by then
is created again. A failed or revoked request is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from drumline.controller.pools.autoscaling import demand_name, recorded_demand
from drumline.controller.pools.demand_objects import (
    DemandInput,
    ObjectSettings,
    bounded_answer,
    pool_uid,
)
from drumline.controller.pools.placeholder_pods import owner_reference
from drumline.controller.pools.templated_demands import (
    answer_in,
    capacity_buffers_of,
    has_expired,
    is_refused,
    provisioning_request_of,
    templates_of,
)
from drumline.kube import codec, reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import AlreadyExists, NotFound, StatusError
from drumline.kube.kinds import CAPACITY_BUFFERS, POD_TEMPLATES, PROVISIONING_REQUESTS, Resource
from drumline.kube.views import ObjectView
from drumline_api.base import LABEL_NODE_DEMAND, LABEL_NODE_DEMAND_KIND
from drumline_scheduler.autoscaling.node_demands import NodeDemand

_ASKED: Final = LABEL_NODE_DEMAND
_MODE: Final = LABEL_NODE_DEMAND_KIND


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplatedKind:
    """One of the two kinds."""

    resource: Resource
    bodies: Callable[..., list[dict[str, Any]]]
    """`provisioning_request_of` or `capacity_buffers_of`."""


TEMPLATED: Final = {
    "ProvisioningRequest": TemplatedKind(
        resource=PROVISIONING_REQUESTS, bodies=provisioning_request_of
    ),
    "CapacityBuffer": TemplatedKind(resource=CAPACITY_BUFFERS, bodies=capacity_buffers_of),
}
"""Keyed by the mode of a GpuPool."""


class TemplatedObjects:
    """The objects of all demands of one mode (`DemandObjects`).

    Args:
        client: fenced client for the API server.
        settings: namespace and image of the templates' pods.
        kind: the kind of the objects that name the templates.
    """

    def __init__(
        self, *, client: KubeClient, settings: ObjectSettings, kind: TemplatedKind
    ) -> None:
        self._client = client
        self._settings = settings
        self._kind = kind
        self._there: tuple[ObjectView, ...] = ()
        """Objects as they were read last."""
        self._templates: tuple[ObjectView, ...] = ()
        self._refused: dict[str, str] = {}
        """Reason for which the API server rejects a demand's object, by the demand's name."""

    async def read(self) -> tuple[NodeDemand, ...]:
        """Read the existing objects. A kind that is not served has none."""
        self._templates = await self._list(POD_TEMPLATES)
        try:
            self._there = await self._list(self._kind.resource)
        except NotFound:
            self._there = ()
        demands = (
            recorded_demand(each.annotations, uid=each.labels[_ASKED]) for each in self._there
        )
        return tuple(demand for demand in demands if demand is not None)

    async def _list(self, resource: Resource) -> tuple[ObjectView, ...]:
        raw = await reads.list_all(
            self._client,
            resource,
            namespace=self._settings.namespace,
            label_selector=f"{_ASKED},{_MODE}={self._kind.resource.kind}",
        )
        return tuple(map(codec.custom_object, raw))

    async def keep_only(self, demands: Collection[NodeDemand]) -> None:
        """Delete the objects of other demands."""
        names = {demand_name(each) for each in demands}
        self._refused = {name: why for name, why in self._refused.items() if name in names}
        for resource, there in (
            (self._kind.resource, self._there),
            (POD_TEMPLATES, self._templates),
        ):
            for each in there:
                if not any(each.name.startswith(name) for name in names):
                    await self._delete(resource, each)

    async def _delete(self, resource: Resource, stale: ObjectView) -> None:
        try:
            await writes.delete(
                self._client,
                resource,
                name=stale.name,
                uid=stale.uid,
                namespace=self._settings.namespace,
            )
        except NotFound:
            return

    async def withdraw(self, demand: NodeDemand) -> None:
        """Delete a demand's objects, with one request per kind. The templates come last."""
        for resource in (self._kind.resource, POD_TEMPLATES):
            try:
                await writes.delete_collection(
                    self._client,
                    resource,
                    namespace=self._settings.namespace,
                    label_selector=(f"{_ASKED}={demand.uid},{_MODE}={self._kind.resource.kind}"),
                )
            except NotFound:
                continue

    async def ask(self, request: DemandInput) -> None:
        """Create missing objects, and replace expired ones."""
        # Phase 1: delete requests whose booking has expired.
        demand = request.demand
        mine = self._of(demand)
        expired = [each for each in mine if has_expired(each.status)]
        for each in expired:
            await self._delete(self._kind.resource, each)
        # Phase 2: find what is missing. Most calls end here, without a request.
        there = {(POD_TEMPLATES, each.name) for each in self._templates}
        there |= {(self._kind.resource, each.name) for each in mine if each not in expired}
        missing = {_identity(each) for each in self._objects(request, metadata={})} - there
        if not missing:
            return
        # Phase 3: create in order. The object with the record comes last.
        try:
            metadata = await self._metadata(demand)
            for each in self._objects(request, metadata=metadata):
                if _identity(each) in missing:
                    await self._create_once(each)
        except NotFound:
            kind = self._kind.resource
            self._refused[demand_name(demand)] = (
                f"the cluster does not serve {kind.plural}.{kind.group}/{kind.version}; install"
                " its CRD and enable it in the autoscaler, or set another autoscaling.mode"
            )
        except StatusError as error:
            self._refused[demand_name(demand)] = error.message
        else:
            self._refused.pop(demand_name(demand), None)

    async def _metadata(self, demand: NodeDemand) -> dict[str, Any]:
        return {
            "namespace": self._settings.namespace,
            "labels": {_ASKED: demand.uid, _MODE: self._kind.resource.kind},
            "ownerReferences": [
                owner_reference(demand.pool, uid=await pool_uid(self._client, demand.pool))
            ],
        }

    def _objects(self, request: DemandInput, *, metadata: dict[str, Any]) -> list[_DemandObject]:
        """Return a demand's objects in the order of creation, or none if its gang is not known."""
        demand, gang, autoscaling = request.demand, request.gang, request.spec.autoscaling
        if gang is None or autoscaling is None:
            return []
        templates = templates_of(
            demand,
            gang=gang,
            spec=request.spec,
            metadata=metadata,
            image=self._settings.image,
        )
        counts = [count for _, count in templates]
        bodies = self._kind.bodies(
            demand, counts=counts, autoscaling=autoscaling, metadata=metadata
        )
        return [
            *(_DemandObject(POD_TEMPLATES, body) for body, _ in templates),
            *(_DemandObject(self._kind.resource, body) for body in bodies),
        ]

    async def _create_once(self, made: _DemandObject) -> None:
        try:
            await writes.create(
                self._client, made.resource, body=made.body, namespace=self._settings.namespace
            )
        except AlreadyExists:
            return

    async def answer(self, demand: NodeDemand) -> str:
        """Return the message of the objects' conditions, or why the API server rejects them."""
        answers = (answer_in(each.status) for each in self._of(demand))
        refusal = self._refused.get(demand_name(demand))
        return bounded_answer(refusal or next(filter(None, answers), ""))

    def is_refused(self, demand: NodeDemand) -> bool:
        """Return whether a condition or the API server excludes nodes for this demand."""
        return demand_name(demand) in self._refused or any(
            is_refused(each.status) for each in self._of(demand)
        )

    def _of(self, demand: NodeDemand) -> list[ObjectView]:
        name = demand_name(demand)
        return [each for each in self._there if each.name.startswith(name)]


class _DemandObject(NamedTuple):
    resource: Resource
    body: dict[str, Any]


def _identity(made: _DemandObject) -> tuple[Resource, str]:
    return made.resource, made.body["metadata"]["name"]
