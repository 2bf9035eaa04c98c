"""The rows: the output of `drumline list`, `queue`, `why`, `nodes`, `share`, `usage`, `gantt`.

Their field names, in camelCase, are an interface: fields are added, none is renamed or removed.
Times are seconds since the epoch, texts are fit for a terminal. A field without a value is absent.
"""

from __future__ import annotations

import msgspec


class OverviewRow(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False
):
    """Base of all rows."""


class BudgetDay(OverviewRow, frozen=True, kw_only=True):
    """Remaining budget of a queue at a moment.

    Attributes:
        at: the moment.
        left_gpu_hours: remaining GPU-hours. Negative if more than the budget is spent.
    """

    at: float
    left_gpu_hours: float


class MoneyDay(OverviewRow, frozen=True, kw_only=True):
    """Remaining budget of a queue in money at a moment.

    Attributes:
        at: the moment.
        left: remaining money, to the nearest hundredth. Negative if more than the budget is spent.
    """

    at: float
    left: float


class MoneyOutlook(OverviewRow, frozen=True, kw_only=True):
    """Remaining money of a budget, and its expectation if all GPUs in use keep their price.

    Attributes:
        left: remaining money at the end of each of its days, and now.
        expected: remaining money at the end of the coming days.
        spent_at: time at which it will be spent. Absent if not within its days, or if it is spent.
        back_at: midnight at which a spent budget is available again. Absent if it is not spent, or
            not within its days.
    """

    left: tuple[MoneyDay, ...] = ()
    expected: tuple[MoneyDay, ...] = ()
    spent_at: float | None = None
    back_at: float | None = None


class UserBudgetRow(OverviewRow, frozen=True, kw_only=True):
    """Use of one user's jobs, if a budget limits each user.

    Attributes:
        user: spec.user of the jobs. Empty for jobs without a user.
        spent_gpu_hours: use that counts, including the present use until now.
        spent_at: time at which it will be spent at the present use.
        back_at: midnight at which a spent budget is available again.
    """

    user: str
    spent_gpu_hours: float
    spent_at: float | None = None
    back_at: float | None = None


class BudgetRow(OverviewRow, frozen=True, kw_only=True):
    """Budget of a queue, and its use.

    Attributes:
        gpu_hours: GPU-hours that its jobs may use. 0: no limit, and no days are listed.
        window_days: length of the window in days, including today. 0: the calendar refills it.
        refill: Weekly or Monthly, by the calendar (UTC). Empty: a sliding window.
        credit_gpu_hours: GPU-hours of the next refill that may be used before it.
        when_spent: Refuse, Warn or Expire.
        cost: money that its jobs may use, a decimal. Empty: no limit.
        spent_cost: money that they used, as the operator last wrote it.
        spent_gpu_hours: whole GPU-hours that they used, as the operator last wrote it.
        left: remaining GPU-hours at the end of each of these days, and now.
        expected: remaining GPU-hours at the end of the coming days, at the present use.
        spent_at: time at which it will be spent. Absent if not within its days, or if it is spent.
        back_at: midnight at which a spent budget is available again. Absent if it is not spent, or
            not within its days.
        money: the same in money. Absent without a cost, or before anything was counted.
        user_gpu_hours: GPU-hours that each user's jobs may use. 0: no limit.
        users: the users with the highest use, by name.
    """

    gpu_hours: int
    window_days: int
    spent_gpu_hours: int
    refill: str = ""
    credit_gpu_hours: int = 0
    when_spent: str = "Refuse"
    cost: str = ""
    spent_cost: str = ""
    left: tuple[BudgetDay, ...] = ()
    expected: tuple[BudgetDay, ...] = ()
    spent_at: float | None = None
    back_at: float | None = None
    money: MoneyOutlook | None = None
    user_gpu_hours: int = 0
    users: tuple[UserBudgetRow, ...] = ()


class StayRow(OverviewRow, frozen=True, kw_only=True):
    """A time in which a job held the same number of GPUs.

    Attributes:
        begins_at: begin of the time.
        ends_at: end of the time, or now if it continues.
        gpus: number of GPUs that it held.
    """

    begins_at: float
    ends_at: float
    gpus: float

    def gpu_seconds(self, *, since: float = 0.0) -> float:
        """Return the GPU-seconds after a moment."""
        return self.gpus * max(0.0, self.ends_at - max(self.begins_at, since))


class JobRow(OverviewRow, frozen=True, kw_only=True):
    """One job.

    Attributes:
        namespace: its namespace.
        name: its name.
        queue: its queue.
        user: its user, from spec.user.
        phase: its phase in one word. NotSeen before the operator has seen it.
        reason: reason for the phase, from a closed list.
        message: the reason with figures and names.
        pods: number of pods that have places, or that it requests.
        gpus: GPUs of these pods.
        partition: resource of these GPUs, if it is a part of a GPU.
        in_gpus: the number of whole GPUs for such parts.
        pool: pool of its places, except surplus.
        surplus_pool: spot pool of the surplus above its smallest size (spot: Surplus).
        ready: ready pods of requested pods.
        step: finished optimizer steps.
        total_steps: all optimizer steps.
        loss: its reported training loss.
        tokens_per_second: throughput over all ranks.
        restarts: recoveries from faults.
        position: position among the waiting jobs of its queue. 1 is next.
        created_at: time of its creation.
        queued_at: time at which it was queued. Its position counts from it, over preemptions too.
        waits_since: time at which it last began to wait. Absent if it does not wait.
        message_at: time at which the operator wrote reason and message. Absent if it does not wait.
        admitted_at: time of its last admission.
        started_at: time at which all its pods first ran.
        finished_at: time at which it succeeded or failed for good.
        expected_start: median of the forecasts of its start while it waits.
        expected_start_by: 90th percentile of these forecasts.
        expected_end: end of its last step at its present pace.
        gpu_seconds: GPU-seconds until now. A part of a GPU counts as its share.
        stays: times with a constant number of GPUs, oldest first. Only the latest of many.
    """

    namespace: str
    name: str
    queue: str
    phase: str
    pods: int
    gpus: int
    user: str = ""
    reason: str = ""
    message: str = ""
    pool: str = ""
    surplus_pool: str = ""
    ready: str = ""
    step: int | None = None
    total_steps: int | None = None
    loss: str = ""
    tokens_per_second: int | None = None
    restarts: int | None = None
    position: int | None = None
    created_at: float | None = None
    queued_at: float | None = None
    waits_since: float | None = None
    message_at: float | None = None
    admitted_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    expected_start: float | None = None
    expected_start_by: float | None = None
    expected_end: float | None = None
    gpu_seconds: int | None = None
    stays: tuple[StayRow, ...] = ()
    partition: str = ""
    in_gpus: float | None = None

    @property
    def whole_gpus(self) -> float:
        """Return its GPUs for sums over jobs: parts count as their share of a GPU."""
        return self.gpus if self.in_gpus is None else self.in_gpus


class QuotaRow(OverviewRow, frozen=True, kw_only=True):
    """Quota and use of a queue in one pool.

    Attributes:
        pool: the GpuPool.
        nominal_gpus: its quota.
        used_gpus: GPUs of its jobs, including those beside their places, and of foreign pods.
        foreign_gpus: part of used_gpus that foreign pods hold.
        parts_per_gpu: 1, or the parts of a GPU in a pool with partitions, in which all figures are
            parts.
        absent: why the queue was not read, as `does not exist (deleted?)`. Its quota is then 0.
        is_pool_gone: whether the GpuPool does not exist.
    """

    pool: str
    nominal_gpus: int
    used_gpus: int
    foreign_gpus: int = 0
    parts_per_gpu: int = 1
    absent: str = ""
    is_pool_gone: bool = False


class WorkloadRow(OverviewRow, frozen=True, kw_only=True):
    """Pods, a Job or a JobSet that wait for a queue.

    Attributes:
        workload: `namespace/pods/name`, or the plural of another kind.
        gpus: GPUs that it waits for.
        position: position in the line of the queue, including jobs. Absent if it has none yet.
        queued_at: time at which it began to wait.
        expected_start: median of the forecasts of its start.
        expected_start_by: 90th percentile of these forecasts.
        reason: why it waits, from a closed list.
        message: the reason with figures and names.
    """

    workload: str
    gpus: int
    position: int | None = None
    queued_at: float | None = None
    expected_start: float | None = None
    expected_start_by: float | None = None
    reason: str = ""
    message: str = ""


class OverrideRow(OverviewRow, frozen=True, kw_only=True):
    """A job that may preempt within the guarantee of other queues, and what it has cost them.

    Attributes:
        job: `namespace/name`.
        queue: its queue.
        until: when the permission ends.
        granted_by: who granted it.
        reason: why.
        gpus: GPUs within the quota of other queues that it keeps from their waiting jobs.
        gpu_hours: GPU-hours of these so far.
        expected_gpu_hours: GPU-hours that follow until the end if it keeps them.
    """

    job: str
    queue: str
    until: float
    granted_by: str
    reason: str
    gpus: float
    gpu_hours: float
    expected_gpu_hours: float


class QueueRow(OverviewRow, frozen=True, kw_only=True):
    """One queue and its line.

    Attributes:
        queue: its name.
        quotas: its quotas and use by pool.
        admitted_jobs: jobs that hold GPUs.
        waiting_gpus: GPUs that its waiting jobs request. Parts count as their share of a GPU.
        waiting: its waiting jobs, the next one first.
        workloads: number of other workloads that wait for it.
        waiting_workloads: the first of these workloads.
        budget: its budget. Absent without a budget.
        stop_policy: None, Hold (nothing starts) or HoldAndDrain (running jobs leave too).
        absent: why the queue was not read, as `is not readable by you`.
        overrides: its jobs that may preempt within the guarantee of other queues.
    """

    queue: str
    quotas: tuple[QuotaRow, ...]
    admitted_jobs: int
    waiting_gpus: float
    waiting: tuple[JobRow, ...]
    workloads: int = 0
    waiting_workloads: tuple[WorkloadRow, ...] = ()
    budget: BudgetRow | None = None
    stop_policy: str = "None"
    absent: str = ""
    overrides: tuple[OverrideRow, ...] = ()


class HolderRow(OverviewRow, frozen=True, kw_only=True):
    """A job or workload that holds GPUs which another job may get.

    Attributes:
        job: `namespace/name` of a job, or `namespace/deployments/name` of other pods.
        queue: its queue.
        gpus: GPUs that it holds.
        expected_end: end of its last step. Absent if not known.
        partition: resource of its GPUs, if it is a part of a GPU.
    """

    job: str
    queue: str
    gpus: float
    expected_end: float | None = None
    partition: str = ""


class ForeignPodRow(OverviewRow, frozen=True, kw_only=True):
    """A pod that names no queue and holds GPUs which a job may get.

    Attributes:
        pod: `namespace/name`.
        gpus: GPUs that it holds.
        node: its node.
    """

    pod: str
    gpus: float
    node: str


class WhyCard(OverviewRow, frozen=True, kw_only=True):
    """Explanation of a job's state, and remedies.

    Attributes:
        job: the job.
        waiting_jobs: number of waiting jobs of its queue, including itself.
        ahead: at most ten jobs of its queue before it that may use one of its pools, the next one
            first.
        gpus_ahead: GPUs that all of these request.
        quotas: quotas and use of its queue by pool.
        budget: budget of its queue. Absent without a limit.
        holders: at most ten holders of GPUs that it may get, the next to end first. Empty if it
            does not wait for GPUs.
        foreign_pods: at most ten pods that name no queue and hold such GPUs, the largest first.
        more_foreign_pods: number of further ones.
        queue_absent: why its queue was not read, as `does not exist (deleted?)`.
        advice: remedies in sentences. Empty if there are none.
        override: its permission to preempt within the guarantee of other queues. Absent without.
    """

    job: JobRow
    waiting_jobs: int = 0
    ahead: tuple[JobRow, ...] = ()
    gpus_ahead: float = 0
    quotas: tuple[QuotaRow, ...] = ()
    budget: BudgetRow | None = None
    holders: tuple[HolderRow, ...] = ()
    foreign_pods: tuple[ForeignPodRow, ...] = ()
    more_foreign_pods: int = 0
    queue_absent: str = ""
    advice: tuple[str, ...] = ()
    override: OverrideRow | None = None


class NodeRow(OverviewRow, frozen=True, kw_only=True):
    """One node of a pool.

    Attributes:
        node: its name.
        pool: its pool.
        domains: its topology domains, broadest first. Empty if the label is missing.
        gpus: allocatable GPUs.
        held_gpus: GPUs that are not free: at places of jobs, and of other bound pods.
        foreign_gpus: the part of held_gpus that pods of other workloads hold.
        jobs: jobs with places there, as `namespace/name`.
        workloads: other holders, as `namespace/deployments/name`.
        promised_to: waiting jobs that will get places there, as `namespace/name`.
        state: Ready, NotReady, Cordoned, Tainted or Quarantined.
        why: reason of the state. For a ready or quarantined node, the evidence against it.
        capacity: OnDemand, Spot or Reserved, from its pool.
        price_per_gpu_hour: price of one GPU for an hour, a decimal. Empty if not known.
        parts_per_gpu: 1, or the parts of a GPU in a pool with partitions, in which both figures are
            parts.
        whole_gpus: GPUs that are not divided, in such a pool.
    """

    node: str
    pool: str
    domains: tuple[str, ...]
    gpus: int
    held_gpus: int
    state: str
    why: str = ""
    foreign_gpus: int = 0
    jobs: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    promised_to: tuple[str, ...] = ()
    capacity: str = "OnDemand"
    price_per_gpu_hour: str = ""
    parts_per_gpu: int = 1
    whole_gpus: int | None = None


class UsageRow(OverviewRow, frozen=True, kw_only=True):
    """Use of jobs in a period, for one group.

    Attributes:
        by: values of the group, in the requested order.
        jobs: number of jobs that held GPUs in the period.
        gpu_seconds: GPU-seconds in the period, the sum of the next five fields.
        productive: GPU-seconds while training made progress.
        starting: GPU-seconds while pods started.
        repeated: GPU-seconds of steps that were repeated after a fault.
        recovering: GPU-seconds between a fault and the first step after it.
        foreign: GPU-seconds of foreign pods that name the queue and still exist.
        workloads: number of workloads of such pods.
        estimated_gpu_seconds: part of gpu_seconds without a known time, counted in proportion to
            time.
        budget: budget of the queue, if jobs are grouped only by queue. Absent without a budget.
    """

    by: tuple[str, ...]
    jobs: int
    gpu_seconds: int
    productive: int
    starting: int
    repeated: int
    recovering: int
    foreign: int = 0
    workloads: int = 0
    estimated_gpu_seconds: int = 0
    budget: BudgetRow | None = None


class SharePart(OverviewRow, frozen=True, kw_only=True):
    """GPUs of one pool in the share of a queue.

    Attributes:
        pool: its name.
        gpus: what the queue's jobs hold there, in GPUs.
        weight: what one of them counts.
    """

    pool: str
    gpus: float
    weight: int


class ShareRow(OverviewRow, frozen=True, kw_only=True):
    """Share of a queue in its cohort, and its past use.

    Attributes:
        queue: its name.
        cohort: root of the queues that it shares with, or its own name.
        weight: its weight among its siblings.
        nominal_gpus: its quota over all pools, in GPUs.
        used_gpus: GPUs that its jobs hold now.
        borrowed_gpus: GPUs that they hold beyond the quota.
        had: its part of the cohort's use with older use decayed, between 0 and 1.
        due: its part by weight, between 0 and 1.
        owed: due minus had. Negative if it used more than its share.
        waiting_jobs: number of waiting jobs.
        next_job: the first of them, as `namespace/name`.
        next_start: expected start of that job.
        next_start_by: 90th percentile of the forecasts of its start.
        parts: pools whose GPUs its share adds up, each with its weight.
        absent: why the queue was not read. Then its quota, weight and share are 0.
    """

    queue: str
    cohort: str
    weight: int
    nominal_gpus: float
    used_gpus: float
    borrowed_gpus: float
    due: float
    had: float | None = None
    owed: float | None = None
    waiting_jobs: int = 0
    next_job: str = ""
    next_start: float | None = None
    next_start_by: float | None = None
    parts: tuple[SharePart, ...] = ()
    absent: str = ""


class GanttBar(OverviewRow, frozen=True, kw_only=True):
    """A part of a job's time.

    Attributes:
        state: Waited, Held (it has its GPUs), Planned (it will hold them), or StartsWithin (its
            start is expected between these moments).
        begins_at: begin of the part.
        ends_at: end of the part. Absent if not known.
    """

    state: str
    begins_at: float
    ends_at: float | None = None


class GanttRow(OverviewRow, frozen=True, kw_only=True):
    """One job over time.

    Attributes:
        job: `namespace/name`.
        queue: its queue.
        phase: its phase in one word.
        gpus: GPUs that it holds, held last, or requests.
        position: position in the line of its queue.
        bars: parts of its past and expected time, in order.
    """

    job: str
    queue: str
    phase: str
    gpus: int
    bars: tuple[GanttBar, ...]
    position: int | None = None


class LineRow(OverviewRow, frozen=True, kw_only=True):
    """A place of a job or another workload in the line of a queue.

    Attributes:
        name: `namespace/name` of a job, `namespace/pods/name` of a pod, and so on.
        gpus: GPUs that it requests.
        position: its position from 1. Absent if it has none yet.
        queued_at: time at which it was queued.
        waits_since: time at which it last began to wait.
        message_at: time at which the operator wrote reason and message. Absent if not known.
        expected_start: median of the forecasts of its start.
        expected_start_by: 90th percentile of these forecasts.
        reason: why it waits, from a closed list.
        message: the reason with figures and names.
        partition: resource of a job's GPUs, if it is a part of a GPU.
    """

    name: str
    gpus: int
    position: int | None = None
    queued_at: float | None = None
    waits_since: float | None = None
    message_at: float | None = None
    expected_start: float | None = None
    expected_start_by: float | None = None
    reason: str = ""
    message: str = ""
    partition: str = ""


class WorkloadCard(OverviewRow, frozen=True, kw_only=True):
    """Explanation of the state of a pod, Job or other workload, and the queue that pays for it.

    Attributes:
        workload: `namespace/pods/name`, or the plural of another kind.
        queue: queue that pays, or will pay. Empty without one.
        state: Waiting, Admitted (the operator has admitted it as a whole), Charged (its pods are
            charged one by one), Held (its owner has suspended it), NotCharged or Ended.
        message: explanation of the state, or why it waits.
        reason: why it waits, from a closed list.
        gpus: GPUs that it waits for, or holds.
        pods: number of pods that hold them.
        position: position in the line of the queue, including jobs. Absent if it has none.
        waiting: number of entries in that line, including itself.
        queued_at: time at which it began to wait.
        expected_start: median of the forecasts of its start.
        expected_start_by: 90th percentile of these forecasts.
        since: start of the first of its pods that hold GPUs.
        ahead: at most ten entries before it, the next one first.
        gpus_ahead: GPUs that all entries before it request.
        quotas: quotas and use of the queue by pool.
        budget: budget of the queue. Absent without a limit.
        holders: at most ten holders of GPUs in the pools of the queue.
        advice: remedies in sentences. Empty if there are none.
    """

    workload: str
    queue: str
    state: str
    message: str = ""
    reason: str = ""
    gpus: float = 0
    pods: int = 0
    position: int | None = None
    waiting: int = 0
    queued_at: float | None = None
    expected_start: float | None = None
    expected_start_by: float | None = None
    since: float | None = None
    ahead: tuple[LineRow, ...] = ()
    gpus_ahead: int = 0
    quotas: tuple[QuotaRow, ...] = ()
    budget: BudgetRow | None = None
    holders: tuple[HolderRow, ...] = ()
    advice: tuple[str, ...] = ()
