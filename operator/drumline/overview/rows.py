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
    """What a queue with a budget has left at a moment.

    Attributes:
        at: the moment.
        left_gpu_hours: of its budget; negative: more than that is spent.
    """

    at: float
    left_gpu_hours: float


class MoneyDay(OverviewRow, frozen=True, kw_only=True):
    """What a queue with a budget in money has left at a moment.

    Attributes:
        at: the moment.
        left: of its cost, to the nearest hundredth; negative: more than that is spent.
    """

    at: float
    left: float


class MoneyOutlook(OverviewRow, frozen=True, kw_only=True):
    """What is left of a budget's cost, and how that goes on if what is held stays at its price.

    Attributes:
        left: at the end of each of its days, and now.
        expected: at the end of the coming days.
        spent_at: when it is spent; absent: not within its days, or it is spent.
        back_at: it is spent: the midnight at which enough flows back; absent: it is not spent, or
            not within its days.
    """

    left: tuple[MoneyDay, ...] = ()
    expected: tuple[MoneyDay, ...] = ()
    spent_at: float | None = None
    back_at: float | None = None


class UserBudgetRow(OverviewRow, frozen=True, kw_only=True):
    """What one user's jobs had, where a budget limits each user's.

    Attributes:
        user: spec.user of the jobs; empty: of those without.
        spent_gpu_hours: what counts, what they hold until now included.
        spent_at: as of the outlook of money, if the user's jobs hold what they hold now.
        back_at: the same.
    """

    user: str
    spent_gpu_hours: float
    spent_at: float | None = None
    back_at: float | None = None


class BudgetRow(OverviewRow, frozen=True, kw_only=True):
    """What the jobs of a queue may have in a time, and what they had.

    Attributes:
        gpu_hours: GPU-hours that they may have; 0: any number, and nothing is said of days.
        window_days: in so many days, today included; 0: it is refilled.
        refill: Weekly or Monthly, by the calendar (UTC); empty: what was had flows back.
        credit_gpu_hours: of the next refill, which they may have before it.
        when_spent: Refuse, Warn or Expire.
        cost: what they may cost, a decimal; empty: any amount.
        spent_cost: what they cost, as the operator last wrote it.
        spent_gpu_hours: whole GPU-hours that they had, as the operator last wrote it.
        left: what was left at the end of each of these days, and now.
        expected: what will be left at the end of the coming days, if the queue holds what it holds
            now.
        spent_at: when it is spent then; absent: not within its days, or it is spent.
        back_at: it is spent: the midnight at which enough flows back then; absent: it is not
            spent, or not within its days.
        money: the same of its cost; absent: it has none, or nothing was counted yet.
        user_gpu_hours: GPU-hours that each user's jobs may have; 0: any number.
        users: of these users, those with most, by name.
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
        begins_at: its begin.
        ends_at: its end; now, where it is not over.
        gpus: how many it held.
    """

    begins_at: float
    ends_at: float
    gpus: float

    def gpu_seconds(self, *, since: float = 0.0) -> float:
        """What of it lies after this moment."""
        return self.gpus * max(0.0, self.ends_at - max(self.begins_at, since))


class JobRow(OverviewRow, frozen=True, kw_only=True):
    """One job.

    Attributes:
        namespace: its namespace.
        name: its name.
        queue: its queue.
        user: its user, by spec.user.
        phase: one word for what it does; NotSeen before the operator has looked at it.
        reason: why it is in this phase, from a closed list.
        message: the reason with figures and names.
        pods: how many it has places for, or asks for.
        gpus: GPUs of these pods.
        partition: the resource that these are, where it is a part of a GPU.
        in_gpus: how many whole GPUs they are then.
        pool: the pool of its places, but for surplus.
        surplus_pool: the spot pool of what it has above its smallest size (spot: Surplus).
        ready: pods ready of pods wanted.
        step: finished optimizer steps.
        total_steps: optimizer steps in all.
        loss: its training loss, as reported.
        tokens_per_second: over all ranks.
        restarts: recoveries that count against a limit.
        position: of the jobs of its queue that wait, the how-manieth it is; 1 is next.
        created_at: when it was created.
        queued_at: when it began to wait; kept over preemption.
        admitted_at: when it last got its GPUs.
        started_at: when all its pods first ran.
        finished_at: when it succeeded or failed for good.
        expected_start: while it waits: half of the forecasts of its start are before this.
        expected_start_by: nine in ten of them are before this.
        expected_end: when its last step ends at its present pace.
        gpu_seconds: what it has held so far; a part of a GPU counts as its share.
        stays: when it held how many GPUs, oldest first; of many the latest.
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
        """Its GPUs, for sums over jobs: parts as what they are of a GPU."""
        return self.gpus if self.in_gpus is None else self.in_gpus


class QuotaRow(OverviewRow, frozen=True, kw_only=True):
    """What a queue may hold and holds of one pool.

    Attributes:
        pool: the GpuPool.
        nominal_gpus: its quota.
        used_gpus: what its jobs hold, what they hold beside their places included, and foreign
            pods.
        foreign_gpus: what of it foreign pods hold, which are no TrainingJob's.
        parts_per_gpu: 1; of a pool with partitions all of these are parts, so many of a GPU.
    """

    pool: str
    nominal_gpus: int
    used_gpus: int
    foreign_gpus: int = 0
    parts_per_gpu: int = 1


class WorkloadRow(OverviewRow, frozen=True, kw_only=True):
    """Pods, a Job or a JobSet that wait for a queue and are no TrainingJob.

    Attributes:
        workload: `namespace/pods/name`, or the plural of another kind.
        gpus: GPUs that it waits for.
        position: its place in the line of the queue, jobs included; absent: in none yet.
        queued_at: when it began to wait.
        expected_start: half of the forecasts of its start are before this.
        expected_start_by: nine in ten of them are before this.
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


class QueueRow(OverviewRow, frozen=True, kw_only=True):
    """One queue and its line.

    Attributes:
        queue: its name.
        quotas: by pool.
        admitted_jobs: jobs that hold GPUs.
        waiting_gpus: GPUs that its waiting jobs ask for; parts count as what they are of a GPU.
        waiting: its waiting jobs, the next first.
        workloads: how many other workloads wait for it.
        waiting_workloads: the first of them.
        budget: its budget; absent: it has none.
        stop_policy: None, Hold (nothing more of it starts) or HoldAndDrain (what runs leaves, too).
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


class HolderRow(OverviewRow, frozen=True, kw_only=True):
    """What holds GPUs which another job may get.

    Attributes:
        job: `namespace/name` of a job; of pods that are no job's `namespace/deployments/name`.
        queue: its queue.
        gpus: what it holds.
        expected_end: when its last step ends; absent: nobody knows.
        partition: the resource that its GPUs are, where it is a part of a GPU.
    """

    job: str
    queue: str
    gpus: float
    expected_end: float | None = None
    partition: str = ""


class WhyCard(OverviewRow, frozen=True, kw_only=True):
    """Why a job is where it is, and what would help.

    Attributes:
        job: the job.
        waiting_jobs: how many jobs of its queue wait, itself included.
        ahead: the jobs of its queue that come before it, the next first; at most ten.
        gpus_ahead: what all jobs before it ask for, in GPUs.
        quotas: what its queue may hold and holds, by pool.
        budget: what the jobs of its queue may have in a time; absent: there is no limit.
        holders: jobs that hold GPUs of the pools it may use, the next to end first; at most ten.
        advice: what to do, in sentences; empty: nothing.
    """

    job: JobRow
    waiting_jobs: int = 0
    ahead: tuple[JobRow, ...] = ()
    gpus_ahead: float = 0
    quotas: tuple[QuotaRow, ...] = ()
    budget: BudgetRow | None = None
    holders: tuple[HolderRow, ...] = ()
    advice: tuple[str, ...] = ()


class NodeRow(OverviewRow, frozen=True, kw_only=True):
    """One node of a pool.

    Attributes:
        node: its name.
        pool: its pool.
        domains: its topology domains, broadest first; empty where the label is missing.
        gpus: what it can allocate.
        held_gpus: what jobs hold there by their places; other pods are not counted.
        jobs: the jobs that hold them, as `namespace/name`.
        promised_to: waiting jobs that will get places there, as `namespace/name`.
        state: Ready, NotReady, Cordoned, Tainted or Quarantined.
        why: what the node says of it; of one that is ready or quarantined, what speaks against it.
        capacity: OnDemand, Spot or Reserved, as its pool says.
        price_per_gpu_hour: what one of its GPUs costs for an hour, a decimal; empty: not known.
        parts_per_gpu: 1; in a pool with partitions both figures are parts, so many of a GPU.
        whole_gpus: the GPUs among them that are not divided, in such a pool.
    """

    node: str
    pool: str
    domains: tuple[str, ...]
    gpus: int
    held_gpus: int
    state: str
    why: str = ""
    jobs: tuple[str, ...] = ()
    promised_to: tuple[str, ...] = ()
    capacity: str = "OnDemand"
    price_per_gpu_hour: str = ""
    parts_per_gpu: int = 1
    whole_gpus: int | None = None


class UsageRow(OverviewRow, frozen=True, kw_only=True):
    """What jobs held in a period, for one value of what is grouped by.

    Attributes:
        by: the values of the group, in the order that was asked for.
        jobs: jobs that held GPUs in the period.
        gpu_seconds: what they held in it: the sum of the next five.
        productive: while training went on.
        starting: while pods came up.
        repeated: while steps were done again that a fault had undone.
        recovering: between a fault and the first step after it.
        foreign: held by pods that are no job's and name the queue, of those that still exist.
        workloads: what made such pods.
        estimated_gpu_seconds: the part of gpu_seconds of which it is not known when it was held:
            that is counted in proportion to time.
        budget: of the queue, where jobs are grouped by queue alone; absent: it has none.
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


class ShareRow(OverviewRow, frozen=True, kw_only=True):
    """What a queue is due beside the other queues of its cohort, and what it had.

    Attributes:
        queue: its name.
        cohort: the queue above all that it shares with; its own name where it shares with none.
        weight: what it is due beside its siblings.
        nominal_gpus: its quota over all pools, in GPUs.
        used_gpus: what its jobs hold now.
        borrowed_gpus: what they hold beyond the quota.
        had: its part of what the cohort had, older use decayed; between 0 and 1.
        due: its part by weight; between 0 and 1.
        owed: due less had; negative: it has had more than its share.
        waiting_jobs: jobs that wait.
        next_job: the first of them, as `namespace/name`.
        next_start: when that one is expected to start.
        next_start_by: nine in ten forecasts are before this.
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


class GanttBar(OverviewRow, frozen=True, kw_only=True):
    """A stretch of a job's time.

    Attributes:
        state: Waited, Held (it has its GPUs), Planned (it will hold them), or StartsWithin (between
            these two moments its start is expected).
        begins_at: its begin.
        ends_at: its end; absent: nobody knows.
    """

    state: str
    begins_at: float
    ends_at: float | None = None


class GanttRow(OverviewRow, frozen=True, kw_only=True):
    """One job over time.

    Attributes:
        job: `namespace/name`.
        queue: its queue.
        phase: one word for what it does.
        gpus: what it holds, held last, or asks for.
        position: its place in the line of its queue.
        bars: what was, and then what is expected, in the order of time.
    """

    job: str
    queue: str
    phase: str
    gpus: int
    bars: tuple[GanttBar, ...]
    position: int | None = None


class LineRow(OverviewRow, frozen=True, kw_only=True):
    """A place in the line of a queue, of a job or another workload.

    Attributes:
        name: `namespace/name` of a job, `namespace/pods/name` of a pod, and so on.
        gpus: what it asks for.
        position: its place, from 1; absent: it is in none yet.
        queued_at: when it began to wait.
        expected_start: half of the forecasts of its start are before this.
        expected_start_by: nine in ten of them are before this.
        reason: why it waits, from a closed list.
        message: the reason with figures and names.
        partition: of a job the resource that its GPUs are, where it is a part of a GPU.
    """

    name: str
    gpus: int
    position: int | None = None
    queued_at: float | None = None
    expected_start: float | None = None
    expected_start_by: float | None = None
    reason: str = ""
    message: str = ""
    partition: str = ""


class WorkloadCard(OverviewRow, frozen=True, kw_only=True):
    """Why a pod, Job or the like is where it is, and which queue pays for it.

    Attributes:
        workload: `namespace/pods/name`, or the plural of another kind.
        queue: that pays, or will; empty: none does.
        state: Waiting, Admitted (the operator has let it go, and all of it is charged), Charged
            (its pods are, one by one), Held (its owner has suspended it), NotCharged or Ended.
        message: what that means, or why it waits.
        reason: why it waits, from a closed list.
        gpus: that it waits for, or holds.
        pods: that hold them.
        position: its place in the line of the queue, jobs included; absent: in none.
        waiting: how many wait there, itself included.
        queued_at: when it began to wait.
        expected_start: half of the forecasts of its start are before this.
        expected_start_by: nine in ten of them are before this.
        since: when the first of its pods began that hold GPUs.
        ahead: what comes before it, the next first; at most ten.
        gpus_ahead: what all before it ask for.
        quotas: what the queue may hold and holds, by pool.
        budget: what of the queue may be had in a time; absent: there is no limit.
        holders: who holds GPUs of the pools of the queue; at most ten.
        advice: what to do, in sentences; empty: nothing.
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
