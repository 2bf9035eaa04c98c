"""The objects of the API server with the fields that rows read. A job takes about 10 us.

Every text here is foreign, because a tenant may write most of them. `rows` are made of `plain`
texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Generic, TypeVar

import msgspec

from drumline.overview.workload_objects import PodObject, WorkloadObject
from drumline_api.objects import builtin
from drumline_api.objects.base import ObjectMetadata, ObjectPart
from drumline_api.objects.custom import (
    StoredAssignment,
    StoredGpuPool,
    StoredPoolNodes,
    StoredTrainingJob,
    StoredTrainingJobSpec,
    StoredTrainingQueue,
)

T = TypeVar("T")
GONE: Final = "does not exist (deleted?)"
_LAST: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
"""The last time that can be written as RFC 3339."""


class JobSpec(StoredTrainingJobSpec, frozen=True):
    """Spec of a job, with sums over its pods."""

    @property
    def pods(self) -> int:
        """Return the pods of the whole gang, including roles."""
        return self.nodes + sum(role.nodes for role in self.roles or ())

    @property
    def role_gpus(self) -> int:
        """Return the GPUs of the pods of roles."""
        return sum(role.nodes * role.gpus_per_node for role in self.roles or ())

    def gpus_of(self, indices: Iterable[int]) -> int:
        """Return the GPUs of the pods with these indices: ranks first, then role by role."""
        return sum(map(self._gpus_of_pod, indices))

    def _gpus_of_pod(self, index: int) -> int:
        # Indices count the ranks first and then each role, as the operator numbers pods.
        number = index - self.nodes
        for role in (self.roles or ()) if number >= 0 else ():
            if number < role.nodes:
                return role.gpus_per_node
            number -= role.nodes
        # An index beyond all roles belongs to a spec that changed. It counts as a rank.
        return self.gpus_per_node


class ManagedFields(ObjectPart, frozen=True):
    """An entry of metadata.managedFields."""

    subresource: str = ""
    time: str | None = None


class JobMetadata(ObjectMetadata, frozen=True):
    """Metadata of a job. kubectl omits managedFields by default."""

    managed_fields: list[ManagedFields] | None = None

    @property
    def written_at(self) -> float | None:
        """When its status was last written, in whole seconds since the epoch."""
        # A write of the status by any manager counts, and the newest one is taken.
        times = (
            seconds(entry.time)
            for entry in self.managed_fields or ()
            if entry.subresource == "status"
        )
        return max((time for time in times if time is not None), default=None)


class JobObject(StoredTrainingJob, frozen=True):
    """A TrainingJob, with what follows from its places."""

    metadata: JobMetadata
    spec: JobSpec = JobSpec()

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def finished(self) -> bool:
        """Return whether it succeeded or failed for good."""
        return self.status.finished_at is not None

    @property
    def held_places(self) -> StoredAssignment | None:
        """Return the places at which it holds GPUs, or None once it has ended."""
        return None if self.finished else self.status.assignment

    @property
    def held_gpus(self) -> Mapping[str, int]:
        """The GPUs of its places, by pool; none once it has ended."""
        places = self.held_places
        if places is None:
            return {}
        if places.surplus is None:
            return {places.gpu_pool: self.gpus}
        # Only ranks are surplus, so each one has `gpusPerNode` GPUs.
        beyond = len(places.surplus.indices) * self.spec.gpus_per_node
        held = Counter({places.gpu_pool: self.gpus - beyond})
        held[places.surplus.gpu_pool] += beyond
        return held

    @property
    def waits(self) -> bool:
        """Return whether it waits for nodes."""
        # A job without a phase was not seen by the operator yet.
        return self.status.phase in (None, "Pending") and not (self.finished or self.spec.suspend)

    @property
    def pods(self) -> int:
        """Pods that it has places for now; without places, those that it asks for."""
        places = self.status.assignment
        return self.spec.pods if places is None else len(places.nodes)

    @property
    def gpus(self) -> int:
        """GPUs of `pods`."""
        # Roles never shrink, so a change of the size is a change of the ranks.
        ranks = self.pods - self.spec.pods + self.spec.nodes
        return ranks * self.spec.gpus_per_node + self.spec.role_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded(Generic[T]):
    """The objects that could be read, and what is to be said of the others."""

    objects: tuple[T, ...]
    unreadable: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterObjects:
    """Objects of a cluster that were read at one moment.

    Attributes:
        as_of: time of the read, in seconds since the epoch.
        jobs: the TrainingJobs.
        queues: the TrainingQueues.
        pools: the GpuPools.
        nodes: the Nodes.
        priorities: the PriorityClasses.
        slices: the ResourceSlices.
        pods: pods that do not belong to a TrainingJob.
        workloads: Jobs and other workloads, by `namespace/plural/name`.
        remarks: sentences about objects that could not be read.
        unread: kinds whose list was not read, with a predicate that says why.
    """

    as_of: float
    jobs: tuple[JobObject, ...] = ()
    queues: tuple[StoredTrainingQueue, ...] = ()
    pools: tuple[StoredGpuPool, ...] = ()
    nodes: tuple[builtin.Node, ...] = ()
    priorities: tuple[builtin.PriorityClass, ...] = ()
    slices: tuple[builtin.ResourceSlice, ...] = ()
    pods: tuple[PodObject, ...] = ()
    workloads: Mapping[str, WorkloadObject] = field(default_factory=dict[str, WorkloadObject])
    remarks: tuple[str, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict[str, str])

    def absence(self, kind: str) -> str:
        """Return why an object that others name is not here: `does not exist (deleted?)`."""
        return self.unread.get(kind, GONE)


def node_names(places: StoredAssignment | StoredPoolNodes) -> list[str]:
    """Return full node names, by position."""
    # Names share a prefix in the status, which keeps jobs of thousands of nodes small.
    return [places.prefix + rest for rest in places.nodes]


def decoded(raws: Iterable[bytes], kind: type[T]) -> Decoded[T]:
    """Decode objects of one kind from JSON. Count the objects that cannot be decoded."""
    decode = msgspec.json.Decoder(kind).decode
    objects: list[T] = []
    unreadable = 0
    for raw in raws:
        try:
            objects.append(decode(raw))
        except (msgspec.MsgspecError, RecursionError):
            # One bad object must not hide the whole table. It is counted instead.
            unreadable += 1
    return Decoded(objects=tuple(objects), unreadable=unreadable)


@lru_cache(maxsize=8192)
def seconds(time: str | None) -> float | None:
    """Return an RFC 3339 time as seconds since the epoch. None: absent or not valid.

    A time after year 9999 in UTC, which only an offset can make, counts as the end of that year.
    """
    if not time:
        return None
    try:
        read = datetime.fromisoformat(time)
    except ValueError:
        return None
    # Times without a zone are UTC in the API.
    return min((read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp(), _LAST)
