"""Define TrainingQueue, a team's share of the GPUs.

The kind is cluster-scoped. The platform team writes it.
"""

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
    """GPUs of one pool that the jobs of this queue may hold together."""

    gpu_pool: Name
    """Name of the GpuPool."""
    nominal_gpus: Annotated[int, Field(ge=0, le=10_000_000)]
    """Number of GPUs, or of partitions in a pool with partitions. With 0, jobs start in this pool
    only if the queue borrows."""
    nominal_percent: Annotated[int, Field(ge=1, le=100)] | None = None
    """Percentage of the GPUs on healthy nodes of the pool, rounded down. The quota is this number
    or nominalGpus, whichever is larger. Unset: nominalGpus."""
    borrowing_limit_gpus: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """Maximum number of GPUs (partitions in a pool with partitions) that jobs may hold beyond
    nominalGpus while other queues of the cohort do not use them. Unset: no limit. Needs parent."""
    lending_limit_gpus: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """Maximum number of GPUs of nominalGpus (partitions in a pool with partitions) that other
    queues of the cohort may borrow while this queue does not use them. Unset: all. Needs parent."""
    user_limit_gpus: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """Maximum number of GPUs (partitions in a pool with partitions) that the jobs of one user
    (spec.user of the job) may hold together in this queue. Unset: no limit."""

    rules: ClassVar[tuple[Rule, ...]] = (
        # Only rules within one quota are here. Rules across queues need other objects.
        Rule(
            rule="!has(self.lendingLimitGpus) || has(self.nominalPercent)"
            " || self.lendingLimitGpus <= self.nominalGpus",
            message="lendingLimitGpus must be at most nominalGpus, because a queue lends only"
            " its own quota; lower it",
            field_path=".lendingLimitGpus",
        ),
    )


class PreemptionRules(ApiModel):
    """Jobs that the jobs of this queue may preempt."""

    within_queue: Literal["Never", "LowerPriority"] = "LowerPriority"
    """Preemption of lower-priority jobs that hold this queue's quota, in this queue or in queues of
    its cohort. Default: LowerPriority."""
    reclaim: Literal["Never", "LowerPriority", "Any", "FairShare"] = "Any"
    """Preemption of jobs of any priority, by which other queues of the cohort exceed their nominal
    quota, while this queue is below its own, or a cohort between it and the other queue is.
    LowerPriority: only of jobs of lower priority, and of no foreign pods. FairShare: also while
    this queue borrows, if the weighted share of borrowed GPUs of the other queue stays larger.
    Default: Any."""


class ForeignPodRules(ApiModel):
    """Treatment of foreign pods that the queue pays for."""

    borrowed: Literal["Keep", "Evict"] = "Keep"
    """Treatment of foreign pods on borrowed quota when a job is entitled to reclaim it. Keep: the
    job waits until the pods end. Evict: the pods that the job needs are evicted, but this queue
    never falls below its own quota. PodDisruptionBudgets and grace periods are respected. Applies
    only in guarded pools (chart: guardedPools, foreignPods.evict). Default: Keep."""


class QueueOverride(ApiModel):
    """Permission for one job of this queue to preempt within the guarantee of other queues."""

    job: Annotated[
        str,
        Field(
            max_length=317,
            pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$",
        ),
    ]
    """The TrainingJob, as `namespace/name`."""
    until: Timestamp
    """Time at which the permission ends. Then the other queues reclaim their quota as usual."""
    granted_by: Annotated[str, Field(min_length=1, max_length=253)]
    """User name of the administrator who grants it. The API server compares it with the sender."""
    reason: Annotated[str, Field(min_length=1, max_length=256)]
    """Reason, for conditions, events and reports."""


class IdleRules(ApiModel):
    """Treatment of jobs whose GPUs are idle."""

    action: Literal["Warn", "Notify", "Suspend"] = "Warn"
    """Action for an idle job. A job is idle when its ranks show no work for twice their longest
    usual pause plus 60 seconds, outside of phases that may take long. Warn: set the condition Idle
    and send an event. Notify: also send a message through the notifier after afterSeconds. Suspend:
    as Notify. After another afterSeconds the job saves and is suspended. Default: Warn."""
    after_seconds: Annotated[int, Field(ge=60, le=604_800)] = 240
    """Seconds without work before the message, and the minimum number of seconds from the message
    to the suspension. Default: 240."""


class TrainingQueueSpec(ApiModel):
    """Desired state of a TrainingQueue."""

    parent: Name | None = None
    """TrainingQueue above this one. A parent and all queues below it form a cohort, in which queues
    can borrow unused quota. Unset: the queue neither borrows nor lends."""
    quotas: Annotated[
        # 32 pools bound the rule about borrowing below, which visits each quota.
        list[PoolQuota], Field(min_length=1, max_length=32, json_schema_extra=keyed_by("gpuPool"))
    ]
    """Quotas, one per GpuPool. Jobs of this queue run only in these pools."""
    # An empty list would close the queue, for which stopPolicy exists.
    namespaces: Annotated[
        list[Name] | None, Field(min_length=1, max_length=256, json_schema_extra=DISTINCT)
    ] = None
    """Namespaces whose jobs may use this queue, in addition to those that namespaceSelector
    selects. If both are unset: all namespaces."""
    namespace_selector: NamespaceSelector | None = None
    """Namespaces whose jobs may use this queue, selected by the labels that they have when a job
    starts. Running jobs continue if their namespace loses the labels. {}: all namespaces. Unset:
    only `namespaces` applies."""
    pays_for_unclaimed_pods: bool = False
    """If true, this queue pays for unclaimed foreign pods with GPUs. A pod is unclaimed if it has
    no queue label, or if its queue does not exist or is closed to the pod's namespace. If several
    queues set this, the oldest queue pays. Default: false."""
    # The upper bound is HighestUserDefinablePriority. System classes lie above it.
    max_priority: Annotated[int, Field(ge=-2_147_483_648, le=1_000_000_000)] | None = None
    """Maximum priority value of jobs in this queue, also while they run. Unset: 1000000000, the
    highest value of a user-defined class."""
    stop_policy: Literal["None", "Hold", "HoldAndDrain"] = "None"
    """Policy for stopping the queue. Hold: no pending job starts. Running jobs continue, and their
    lost pods are replaced. HoldAndDrain: running jobs also save, release their GPUs, and wait at
    their old positions. Other queues can still borrow the unused quota. Default: None."""
    above_quota: Literal["Keep", "Evict"] = "Keep"
    """Treatment of running jobs that hold more than the queue may have after its quota or that of
    its cohort was lowered. Keep: they continue, and nothing starts. Evict: the jobs above it save,
    release their GPUs and wait, the lowest priority first. Default: Keep."""
    weight: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Weight of the queue in its share of common GPUs, relative to its sibling queues. Used by
    fair-share ordering and by FairShare reclaim. Default: 1."""
    budget: QueueBudget | None = None
    """Limits on the GPU-hours and cost of the queue's jobs, and the action when they are used up.
    Usage counts from the time that the budget is set. Foreign pods that the queue pays for also
    count. Unset: no limit."""
    spot: SpotChoice | None = None
    """Use of pools with capacity.type Spot. Prefer: before all other pools. Avoid: after all other
    pools. Only: no other pools. Never: only other pools. Surplus: an elastic job runs at its
    smallest size in other pools, and its further pods run in a spot pool with the same GPUs. With
    Surplus, jobs of a fixed size and jobs that cannot span two pools (gpuPool, topology.required)
    use only other pools. A job that names pools tries them in its own order, limited to those that
    this setting allows. Unset: spot pools are treated like all others, cheapest first. A job starts
    in the first of these pools that has enough free GPUs. Running jobs do not move."""
    max_price_per_gpu_hour: Price | None = None
    """Maximum price per GPU-hour (capacity.pricePerGpuHour). Jobs do not start or grow in pools
    that cost more or that have no known price. Running jobs continue. Unset: no limit."""
    preemption: PreemptionRules = PreemptionRules()
    """Jobs that the jobs of this queue may preempt."""
    foreign_pods: ForeignPodRules = ForeignPodRules()
    """Treatment of foreign pods that this queue pays for."""
    overrides: Annotated[
        list[QueueOverride] | None, Field(max_length=8, json_schema_extra=keyed_by("job"))
    ] = None
    """Jobs of this queue that may preempt jobs of other queues, also of queues within their quota,
    until a moment. No job preempts them meanwhile. All limits still apply. Granting one needs the
    verb `override` on the queue. Unset: none."""
    idle: IdleRules = IdleRules()
    """Treatment of this queue's jobs whose GPUs are idle."""
    min_runtime_seconds: Annotated[int, Field(ge=0, le=31_536_000)] = 0
    """Seconds that a job of this queue must hold its GPUs before it can be preempted. Default:
    0."""

    rules: ClassVar[tuple[Rule, ...]] = (
        # CEL sees one object only. The status reports a parent that does not exist.
        Rule(
            rule="has(self.parent) || !self.quotas.exists(quota, has(quota.borrowingLimitGpus)"
            " || has(quota.lendingLimitGpus))",
            message="borrowingLimitGpus and lendingLimitGpus are limits within a cohort; set"
            " parent or remove them",
            field_path=".quotas",
        ),
    )

    @property
    def is_open_to_all(self) -> bool:
        """Return whether jobs of every namespace may use the queue, whatever their labels."""
        # Both unset means all namespaces, which needs no read of their labels.
        return self.namespaces is None and self.namespace_selector is None


class PoolUsage(ApiModel):
    """GPUs of one pool that the queue holds."""

    gpu_pool: Annotated[str, Field(max_length=253)]
    """Name of the GpuPool."""
    nominal_gpus: int
    """GPUs that the quota allows. In a pool with partitions: partitions."""
    used_gpus: int
    """GPUs held by admitted jobs and by foreign pods that the queue pays for. In a pool with
    partitions: partitions."""
    foreign_gpus: int | None = None
    """Part of usedGpus held by foreign pods, which belong to no TrainingJob. Unset: none."""


class WaitingWorkload(ApiModel):
    """A workload other than a TrainingJob that waits for the queue: pods, a Job or a JobSet."""

    workload: Annotated[str, Field(max_length=512)]
    """For a pod or a group of pods: `namespace/pods/name`. For other kinds, the plural of the kind
    replaces `pods`."""
    gpus: int
    """Number of GPUs that the workload waits for."""
    position: int | None = None
    """Position in the queue, counted together with jobs. 1 is next. Unset: no position yet."""
    queued_at: Timestamp | None = None
    """Time at which the workload began to wait. For a group: when its last pod was created."""
    expected_start: Timestamp | None = None
    """Median of the forecast start times. Unset: not known."""
    expected_start_by: Timestamp | None = None
    """90th percentile of the forecast start times. Unset: not known."""
    reason: Annotated[str, Field(max_length=64)]
    """Reason for waiting, from a closed list."""
    message: Annotated[str, Field(max_length=512)]
    """Reason with figures and names."""


class OverrideUse(ApiModel):
    """GPUs that a job with an override keeps from other queues, up to `at`."""

    job: Annotated[str, Field(max_length=317)]
    """The job, as `namespace/name`."""
    gpus: int
    """GPUs within the quota of other queues that their waiting jobs request, at most those of the
    job."""
    gpu_seconds: int
    """GPU-seconds of these GPUs."""
    at: Timestamp
    """Time up to which gpuSeconds counts. It is written when `gpus` changes."""


class TrainingQueueStatus(ApiModel):
    """Observed state of a TrainingQueue."""

    observed_generation: int | None = None
    """metadata.generation that this status describes."""
    conditions: Annotated[
        list[Condition] | None, Field(max_length=8, json_schema_extra=keyed_by("type"))
    ] = None
    """Conditions: Ready, and Stalled if it applies."""
    admitted_jobs: int | None = None
    """Number of jobs that hold GPUs."""
    pending_jobs: int | None = None
    """Number of pending jobs."""
    pending_workloads: int | None = None
    """Number of other pending workloads: gated pods, suspended Jobs and JobSets. Unset: none."""
    waiting_workloads: Annotated[
        # The status is written often, so the list is short.
        list[WaitingWorkload] | None, Field(max_length=16, json_schema_extra=keyed_by("workload"))
    ] = None
    """First pending workloads, in scheduling order."""
    usage: Annotated[
        list[PoolUsage] | None, Field(max_length=32, json_schema_extra=keyed_by("gpuPool"))
    ] = None
    """GPUs held, by pool."""
    gpus: Annotated[str | None, Field(max_length=32)] = None
    """`used/nominal` over all pools, for the printer column."""
    share_seconds: int | None = None
    """Usage of the queue: its dominant share of the cluster's resources, times seconds. Older usage
    is decayed. A new leader reads it for fair sharing."""
    share_seconds_at: Timestamp | None = None
    """Time of shareSeconds."""
    budget: BudgetUse | None = None
    """Usage of spec.budget. Unset: the queue has no budget."""
    overrides: Annotated[
        list[OverrideUse] | None, Field(max_length=8, json_schema_extra=keyed_by("job"))
    ] = None
    """Usage of spec.overrides. Unset: the queue has none."""


class TrainingQueue(ApiModel):
    """A team's share of the GPUs: quotas per GpuPool, and the namespaces that may use them."""

    KIND: ClassVar[str] = "TrainingQueue"

    spec: TrainingQueueSpec
    """Desired state of the queue."""
    # Atomic, so that managedFields has one entry for the whole status.
    status: Annotated[TrainingQueueStatus | None, Field(json_schema_extra=WRITTEN_AS_ONE)] = None
    """Observed state. Set by the operator."""

    rules: ClassVar[tuple[Rule, ...]] = (
        name_rule(kind="TrainingQueue", longest=63, why="pods carry it as a label"),
        # Longer cycles need several objects. The operator reports them as a condition.
        Rule(
            rule="!has(self.spec.parent) || self.spec.parent != self.metadata.name",
            message="parent must be another queue; name the queue above this one or remove parent",
            field_path=".spec.parent",
        ),
    )
