"""The objects of the API server, as far as rows read them: a job costs some 10 us to decode.

Every text here is foreign: a tenant may write most of them. `rows` are made of `plain` texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Generic, TypeVar

import msgspec

from drumline.overview.object_parts import ObjectMetadata, ObjectPart
from drumline.overview.pool_objects import NodeObject, PoolObject, SliceObject
from drumline.overview.workload_objects import PodObject, WorkloadObject

T = TypeVar("T")


class NominatedPlaces(ObjectPart, frozen=True, rename="camel", gc=False):
    """status.nominated: a node for each member, as `prefix + rest`."""

    gpu_pool: str = ""
    prefix: str = ""
    nodes: list[str] = msgspec.field(default_factory=list[str])

    def node_names(self) -> list[str]:
        """Full node names, by position."""
        return [self.prefix + rest for rest in self.nodes]


class SurplusPlaces(ObjectPart, frozen=True, rename="camel", gc=False):
    """status.assignment.surplus."""

    gpu_pool: str = ""
    indices: list[int] = msgspec.field(default_factory=list[int])


class Places(NominatedPlaces, frozen=True, rename="camel", gc=False):
    """status.assignment."""

    surplus: SurplusPlaces | None = None
    lost: list[int] | None = None
    joining: list[int] | None = None


class StayOnGpus(ObjectPart, frozen=True, rename="camel", gc=False):
    """One of status.gpuSeconds.stays."""

    since: str
    until: str
    gpus: int = 0


class HeldGpuSeconds(ObjectPart, frozen=True, rename="camel", gc=False):
    """status.gpuSeconds: what a job had held by `until`."""

    until: str
    starting: int = 0
    productive: int = 0
    repeated: int = 0
    recovering: int = 0
    stays: list[StayOnGpus] | None = None
    parts: int = 0
    parts_per_gpu: int = 0


class JobCondition(ObjectPart, frozen=True, rename="camel", gc=False):
    """One of status.conditions."""

    type: str
    status: str
    last_transition_time: str | None = None


class WantedTopology(ObjectPart, frozen=True, rename="camel", gc=False):
    """spec.topology."""

    required: str | None = None
    preferred: str | None = None


class WantedRole(ObjectPart, frozen=True, rename="camel", gc=False):
    """One of spec.roles."""

    nodes: int = 1
    gpus_per_node: int = 0


class JobSpec(ObjectPart, frozen=True, rename="camel", gc=False):
    """What a job asks for."""

    queue: str = ""
    nodes: int = 1
    gpus_per_node: int = 0
    gpu_pool: str | None = None
    gpu_partition: str | None = None
    roles: list[WantedRole] | None = None
    user: str | None = None
    priority_class_name: str | None = None
    min_nodes: int | None = None
    topology: WantedTopology | None = None
    suspend: bool = False
    managed_by: str | None = None

    @property
    def pods(self) -> int:
        """Pods of the whole gang as it is asked for, those of roles included."""
        return self.nodes + sum(role.nodes for role in self.roles or ())

    @property
    def role_gpus(self) -> int:
        """GPUs of the pods of roles."""
        return sum(role.nodes * role.gpus_per_node for role in self.roles or ())

    def gpus_of(self, indices: Iterable[int]) -> int:
        """GPUs of the pods with these indices: those with ranks first, then role by role."""
        return sum(map(self._gpus_of_pod, indices))

    def _gpus_of_pod(self, index: int) -> int:
        number = index - self.nodes
        for role in (self.roles or ()) if number >= 0 else ():
            if number < role.nodes:
                return role.gpus_per_node
            number -= role.nodes
        return self.gpus_per_node


class JobStatus(ObjectPart, frozen=True, rename="camel", gc=False):
    """What the operator wrote of a job."""

    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    assignment: Places | None = None
    nominated: NominatedPlaces | None = None
    priority: int | None = None
    queued_at: str | None = None
    expected_start: str | None = None
    expected_start_by: str | None = None
    expected_end: str | None = None
    admitted_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    ready: str | None = None
    restarts: int | None = None
    step: int | None = None
    total_steps: int | None = None
    loss: str | None = None
    tokens_per_second: int | None = None
    gpu_seconds: HeldGpuSeconds | None = None
    conditions: list[JobCondition] | None = None


class JobObject(ObjectPart, frozen=True, rename="camel", gc=False):
    """A TrainingJob."""

    metadata: ObjectMetadata
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def finished(self) -> bool:
        """Whether it succeeded or failed for good."""
        return self.status.finished_at is not None

    @property
    def held_places(self) -> Places | None:
        """Where it holds GPUs; None once it has ended, though its status says where it did."""
        return None if self.finished else self.status.assignment

    @property
    def held_gpus(self) -> Mapping[str, int]:
        """The GPUs of its places, by pool; none once it has ended."""
        places = self.held_places
        if places is None:
            return {}
        if places.surplus is None:
            return {places.gpu_pool: self.gpus}
        beyond = len(places.surplus.indices) * self.spec.gpus_per_node
        held = Counter({places.gpu_pool: self.gpus - beyond})
        held[places.surplus.gpu_pool] += beyond
        return held

    @property
    def waits(self) -> bool:
        """Whether it waits for nodes."""
        return self.status.phase in (None, "Pending") and not (self.finished or self.spec.suspend)

    @property
    def pods(self) -> int:
        """Pods that it has places for now; without places, those that it asks for."""
        places = self.status.assignment
        return self.spec.pods if places is None else len(places.nodes)

    @property
    def gpus(self) -> int:
        """GPUs of `pods`."""
        ranks = self.pods - self.spec.pods + self.spec.nodes
        return ranks * self.spec.gpus_per_node + self.spec.role_gpus


class ShareOfPool(ObjectPart, frozen=True, rename="camel", gc=False):
    """One of spec.quotas of a queue."""

    gpu_pool: str
    nominal_gpus: int = 0


class UsedOfPool(ObjectPart, frozen=True, rename="camel", gc=False):
    """One of status.usage of a queue."""

    gpu_pool: str
    nominal_gpus: int = 0
    used_gpus: int = 0
    foreign_gpus: int = 0


class WaitingOfQueue(ObjectPart, frozen=True, rename="camel", gc=False):
    """One of status.waitingWorkloads of a queue."""

    workload: str = ""
    gpus: int = 0
    position: int | None = None
    queued_at: str | None = None
    expected_start: str | None = None
    expected_start_by: str | None = None
    reason: str = ""
    message: str = ""


class BudgetOfQueue(ObjectPart, frozen=True, rename="camel", gc=False):
    """spec.budget of a queue."""

    gpu_hours: int = 0
    window_days: int = 0
    refill: str = ""
    credit_gpu_hours: int = 0
    when_spent: str = "Refuse"
    cost: str = ""
    user_gpu_hours: int = 0


class DayOfBudget(ObjectPart, frozen=True, rename="camel", gc=False):
    """One of status.budget.days of a queue."""

    day: str
    gpu_seconds: int = 0
    cost: str = ""


class UserOfBudget(ObjectPart, frozen=True, rename="camel", gc=False):
    """One of status.budget.users of a queue."""

    user: str
    days: list[DayOfBudget] | None = None
    gpu_seconds_per_hour: int = 0


class SpentOfBudget(ObjectPart, frozen=True, rename="camel", gc=False):
    """status.budget of a queue."""

    spent_gpu_hours: int = 0
    spent_cost: str = ""
    until: str | None = None
    days: list[DayOfBudget] | None = None
    users: list[UserOfBudget] | None = None
    gpu_seconds_per_hour: int = 0
    cost_per_hour: str = ""


class QueueSpec(ObjectPart, frozen=True, rename="camel", gc=False):
    """What a queue may hold."""

    quotas: list[ShareOfPool] = msgspec.field(default_factory=list[ShareOfPool])
    parent: str | None = None
    weight: int = 1
    stop_policy: str = "None"
    budget: BudgetOfQueue | None = None
    namespaces: list[str] | None = None
    namespace_selector: dict[str, msgspec.Raw] | None = None
    pays_for_unclaimed_pods: bool = False

    def may_be_open_to(self, namespace: str) -> bool:
        """False: it is not; a selector may mean any namespace, as labels are not read here."""
        if self.namespace_selector is not None:
            return True
        return self.namespaces is None or namespace in self.namespaces


class QueueStatus(ObjectPart, frozen=True, rename="camel", gc=False):
    """What a queue holds and held, as the operator last wrote it."""

    usage: list[UsedOfPool] | None = None
    pending_workloads: int = 0
    waiting_workloads: list[WaitingOfQueue] | None = None
    share_seconds: int | None = None
    share_seconds_at: str | None = None
    budget: SpentOfBudget | None = None


class QueueObject(ObjectPart, frozen=True, rename="camel", gc=False):
    """A TrainingQueue."""

    metadata: ObjectMetadata
    spec: QueueSpec = QueueSpec()
    status: QueueStatus = QueueStatus()


class PriorityClassObject(ObjectPart, frozen=True, rename="camel", gc=False):
    """A PriorityClass."""

    metadata: ObjectMetadata
    value: int = 0
    global_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded(Generic[T]):
    """The objects that could be read, and what is to be said of the others."""

    objects: tuple[T, ...]
    unreadable: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterObjects:
    """What was read of a cluster at one moment.

    Attributes:
        as_of: when, in seconds since the epoch.
        jobs: the TrainingJobs.
        queues: the TrainingQueues.
        pools: the GpuPools.
        nodes: the Nodes.
        priorities: the PriorityClasses.
        slices: the ResourceSlices.
        pods: those that are no TrainingJob's and name a queue.
        workloads: Jobs and the like, by `namespace/plural/name`.
        remarks: what could not be read, as sentences.
    """

    as_of: float
    jobs: tuple[JobObject, ...] = ()
    queues: tuple[QueueObject, ...] = ()
    pools: tuple[PoolObject, ...] = ()
    nodes: tuple[NodeObject, ...] = ()
    priorities: tuple[PriorityClassObject, ...] = ()
    slices: tuple[SliceObject, ...] = ()
    pods: tuple[PodObject, ...] = ()
    workloads: Mapping[str, WorkloadObject] = field(default_factory=dict[str, WorkloadObject])
    remarks: tuple[str, ...] = ()


def decoded(raws: Iterable[bytes], kind: type[T]) -> Decoded[T]:
    """Objects of one kind from their JSON; what is not one is counted, not raised."""
    decode = msgspec.json.Decoder(kind).decode
    objects: list[T] = []
    unreadable = 0
    for raw in raws:
        try:
            objects.append(decode(raw))
        except (msgspec.MsgspecError, RecursionError):
            unreadable += 1
    return Decoded(objects=tuple(objects), unreadable=unreadable)


@lru_cache(maxsize=8192)
def seconds(time: str | None) -> float | None:
    """Seconds since the epoch of an RFC 3339 time; None for none, and for what is not one."""
    if not time:
        return None
    try:
        read = datetime.fromisoformat(time)
    except ValueError:
        return None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
