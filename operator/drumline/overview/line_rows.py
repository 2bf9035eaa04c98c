"""Rows of what waits in one line: jobs and other workloads. More of `rows`."""

from __future__ import annotations

from drumline.overview.budget_rows import BudgetRow
from drumline.overview.row import OverviewRow
from drumline.overview.rows import HolderRow, QuotaRow


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
