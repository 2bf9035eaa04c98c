"""TrainingQueue: a team's share of the GPUs. Cluster-scoped, written by the platform team."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from drumline_api.base import (
    DISTINCT,
    WRITTEN_AS_ONE,
    ApiModel,
    Name,
    Rule,
    Timestamp,
    keyed_by,
    name_rule,
)
from drumline_api.capacity import Price, SpotChoice
from drumline_api.conditions import Condition
from drumline_api.namespaceselector import NamespaceSelector
from drumline_api.queuebudget import BudgetUse, QueueBudget


class PoolQuota(ApiModel):
    """How many GPUs of one pool the jobs of this queue may hold together."""

    gpu_pool: Name
    """Name of the GpuPool."""
    nominal_gpus: Annotated[int, Field(ge=0, le=10_000_000)]
    """GPUs, in a pool with partitions parts of them; 0 admits nothing to this pool, unless the
    queue borrows."""
    borrowing_limit_gpus: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """GPUs, in a pool with partitions parts of them, that its jobs may hold beyond nominalGpus
    while other queues of its cohort leave them unused; absent: no limit. Needs parent."""
    lending_limit_gpus: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """GPUs of nominalGpus, in a pool with partitions parts of them, that other queues of its cohort
    may use while this one does not; absent: all. Needs parent."""
    user_limit_gpus: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """GPUs, in a pool with partitions parts of them, that the jobs of one user (spec.user of the
    job) may hold together in this queue; absent: no limit."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.lendingLimitGpus) || self.lendingLimitGpus <= self.nominalGpus",
            message="lendingLimitGpus is at most nominalGpus: a queue lends its own; lower it",
            field_path=".lendingLimitGpus",
        ),
    )


class PreemptionRules(ApiModel):
    """Which jobs the jobs of this queue may preempt."""

    within_queue: Literal["Never", "LowerPriority"] = "LowerPriority"
    """Jobs of its own queue and of those it shares a cohort with that have a lower priority and
    hold its quota. Default: LowerPriority."""
    reclaim: Literal["Never", "Any", "FairShare"] = "Any"
    """Jobs of any priority by which other queues of the cohort hold more than their nominal quota,
    when this queue is under its own. FairShare: also when this queue borrows itself, as long as the
    others' share of what is borrowed, by weight, stays the larger one. Default: Any."""


class ForeignPodRules(ApiModel):
    """What is done about foreign pods that the queue pays for."""

    borrowed: Literal["Keep", "Evict"] = "Keep"
    """What becomes of pods on quota of other queues when a job needs it that may reclaim it. Keep:
    the job waits for their end. Evict: as many as it needs are evicted, never so many that this
    queue has less than its own quota; their PodDisruptionBudgets and grace periods hold. In guarded
    pools alone (chart: guardedPools, foreignPods.evict). Default: Keep."""


class IdleRules(ApiModel):
    """What is done about jobs whose GPUs are idle."""

    action: Literal["Warn", "Notify", "Suspend"] = "Warn"
    """A job is idle once its ranks show no work for 60 seconds more than twice their longest usual
    pause, outside of phases that may take long. Warn: its condition Idle and an event say so.
    Notify: after afterSeconds the notifier sends a message, too. Suspend: as Notify, and after as
    long again the job saves and is suspended. Default: Warn."""
    after_seconds: Annotated[int, Field(ge=60, le=604_800)] = 240
    """Seconds without any work before the message, and at least so many from then on until the
    suspension. Default: 240."""


class TrainingQueueSpec(ApiModel):
    """How much a team may hold, and which jobs may ask for it."""

    parent: Name | None = None
    """TrainingQueue above this one: a parent and all below it are a cohort, in which quota that is
    not used may be borrowed. Absent: nothing is borrowed or lent."""
    quotas: Annotated[
        list[PoolQuota], Field(min_length=1, max_length=32, json_schema_extra=keyed_by("gpuPool"))
    ]
    """One entry a GpuPool; jobs of this queue run in these pools only."""
    namespaces: Annotated[
        list[Name] | None, Field(min_length=1, max_length=256, json_schema_extra=DISTINCT)
    ] = None
    """Namespaces whose jobs may use this queue, beside those that namespaceSelector means; both
    absent: all."""
    namespace_selector: NamespaceSelector | None = None
    """Namespaces whose jobs may use this queue, by their labels as they are when a job is to start:
    one that loses them keeps the jobs that run. {}: all. Absent: only `namespaces` counts."""
    pays_for_unclaimed_pods: bool = False
    """Whether this queue pays for foreign pods with GPUs that no queue pays for by their label:
    they have none, or one of a queue that does not exist or is closed to their namespace. Of
    several such queues the oldest pays. Default: false."""
    max_priority: Annotated[int, Field(ge=-2_147_483_648, le=1_000_000_000)] | None = None
    """Highest priority value a job in this queue may have, for as long as it runs; absent:
    1000000000, the highest of users' classes."""
    stop_policy: Literal["None", "Hold", "HoldAndDrain"] = "None"
    """Hold: no waiting job of this queue starts; those that run go on, and lost pods of theirs are
    replaced. HoldAndDrain: those that run save and give their GPUs up, too, and wait at their old
    positions. What the queue leaves unused may be borrowed as ever. Default: None."""
    weight: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """What the queue is due of what is shared, beside the weights of its siblings: it counts where
    the operator orders by fair share, and in reclaim by FairShare. Default: 1."""
    budget: QueueBudget | None = None
    """GPU-hours and money that its jobs may have in a time, and what becomes of them once these are
    spent. Counted from when it is set, with what foreign pods hold that it pays for; absent: no
    limit."""
    spot: SpotChoice | None = None
    """Whether its jobs use pools with capacity.type Spot. Prefer: before all others. Avoid: after
    all others. Only: no others. Never: only others. Surplus: an elastic job runs with its smallest
    size in other pools, and has what is above that in a spot pool with the same GPUs; jobs of one
    size, and those that cannot span two pools (gpuPool, topology.required), use only others. A job
    that names pools is tried in its own order, in those that this allows. Absent: as any others,
    the cheapest pool first. Whatever of these pools has room when a job starts is taken; no running
    job moves for it."""
    max_price_per_gpu_hour: Price | None = None
    """Pools that cost more (capacity.pricePerGpuHour), or whose price is not known, are not used:
    no job starts there and none grows; those that run go on. Absent: whatever it costs."""
    preemption: PreemptionRules = PreemptionRules()
    """Which jobs the jobs of this queue may preempt."""
    foreign_pods: ForeignPodRules = ForeignPodRules()
    """What is done about foreign pods that this queue pays for."""
    idle: IdleRules = IdleRules()
    """What is done about jobs of this queue whose GPUs are idle."""
    min_runtime_seconds: Annotated[int, Field(ge=0, le=31_536_000)] = 0
    """Jobs of this queue are not preempted before they have held their GPUs for so long.
    Default: 0."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.parent) || !self.quotas.exists(quota, has(quota.borrowingLimitGpus)"
            " || has(quota.lendingLimitGpus))",
            message="borrowingLimitGpus and lendingLimitGpus are limits within a cohort; name the"
            " parent or remove them",
            field_path=".quotas",
        ),
    )

    @property
    def is_open_to_all(self) -> bool:
        """Whether jobs of every namespace may use it, whatever their labels."""
        return self.namespaces is None and self.namespace_selector is None


class PoolUsage(ApiModel):
    """What the queue holds of one pool."""

    gpu_pool: Annotated[str, Field(max_length=253)]
    """Name of the GpuPool."""
    nominal_gpus: int
    """GPUs the quota allows, in a pool with partitions parts of them."""
    used_gpus: int
    """GPUs held by admitted jobs, and by foreign pods that the queue pays for; in a pool with
    partitions parts of them."""
    foreign_gpus: int | None = None
    """How many of them foreign pods hold, which are no TrainingJob's. Absent: none."""


class WaitingWorkload(ApiModel):
    """Pods, a Job or a JobSet that wait for the queue and are no TrainingJob."""

    workload: Annotated[str, Field(max_length=512)]
    """`namespace/pods/name` of a pod or a group; of others the plural of their kind between."""
    gpus: int
    """GPUs that it waits for."""
    position: int | None = None
    """Its place in the line of the queue, jobs included; 1 is next. Absent: it is in none yet."""
    queued_at: Timestamp | None = None
    """When it began to wait: of a group, when the last pod of it came."""
    expected_start: Timestamp | None = None
    """Half of the forecasts of its start are before this. Absent: not known."""
    expected_start_by: Timestamp | None = None
    """Nine in ten of the forecasts of its start are before this. Absent: not known."""
    reason: Annotated[str, Field(max_length=64)]
    """Why it waits, from a closed list."""
    message: Annotated[str, Field(max_length=512)]
    """The reason with figures and names."""


class TrainingQueueStatus(ApiModel):
    """What the operator last saw of the queue."""

    observed_generation: int | None = None
    """metadata.generation this status is about."""
    conditions: Annotated[
        list[Condition] | None, Field(max_length=8, json_schema_extra=keyed_by("type"))
    ] = None
    """What is true of it: Ready, and Stalled where it holds."""
    admitted_jobs: int | None = None
    """Jobs that hold GPUs."""
    pending_jobs: int | None = None
    """Jobs that wait."""
    pending_workloads: int | None = None
    """Other workloads that wait: pods at the gate, suspended Jobs and JobSets. Absent: none."""
    waiting_workloads: Annotated[
        list[WaitingWorkload] | None, Field(max_length=16, json_schema_extra=keyed_by("workload"))
    ] = None
    """The first of them, in the order in which the scheduler looks at them."""
    usage: Annotated[
        list[PoolUsage] | None, Field(max_length=32, json_schema_extra=keyed_by("gpuPool"))
    ] = None
    """GPUs held, by pool."""
    gpus: Annotated[str | None, Field(max_length=32)] = None
    """`used/nominal` over all pools, for the printer column."""
    share_seconds: int | None = None
    """What the queue has had: the largest part of any one resource of the cluster that its jobs
    held, times seconds, older use decayed. For the fair shares of a new leader."""
    share_seconds_at: Timestamp | None = None
    """When that was."""
    budget: BudgetUse | None = None
    """What of spec.budget is spent; absent: it has none."""


class TrainingQueue(ApiModel):
    """A team's share of the GPUs: quotas by GpuPool, and which namespaces may use them."""

    KIND: ClassVar[str] = "TrainingQueue"

    spec: TrainingQueueSpec
    """What is wanted."""
    status: Annotated[TrainingQueueStatus | None, Field(json_schema_extra=WRITTEN_AS_ONE)] = None
    """What is; written by the operator."""

    rules: ClassVar[tuple[Rule, ...]] = (
        name_rule(kind="TrainingQueue", longest=63, why="pods carry it as a label"),
        Rule(
            rule="!has(self.spec.parent) || self.spec.parent != self.metadata.name",
            message="parent is another queue; name the queue above this one or remove it",
            field_path=".spec.parent",
        ),
    )
