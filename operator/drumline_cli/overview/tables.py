"""Rows as columns for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from drumline.overview.advice import page_of
from drumline.overview.jobs import WAITS_FOR_HOLDERS
from drumline.overview.objects import GONE
from drumline.overview.overrides import override_text
from drumline.overview.queues import whole_line
from drumline.overview.rows import (
    BudgetRow,
    HolderRow,
    JobRow,
    LineRow,
    MoneyOutlook,
    NodeRow,
    OverviewRow,
    QueueRow,
    QuotaRow,
    ShareRow,
    UsageRow,
    UserBudgetRow,
    WhyCard,
    WorkloadCard,
    WorkloadRow,
)
from drumline_cli.columns import columns
from drumline_cli.formatting import count, day, duration, gpus, gpus_of, many, percent
from drumline_cli.start_text import start_text

Rows = Sequence[OverviewRow]
_HOUR: Final = 3600
_NOTHING: Final = "-"
_FRESH_SECONDS: Final = 5.0
"""Younger figures are as good as those that were counted now."""


def starts(row: JobRow | WorkloadRow | LineRow | ShareRow | WorkloadCard, *, now: float) -> str:
    """Return when a waiting job starts: `in 12 min to 40 min`, or why that is not known."""
    # A queue's row has the forecast of its next job, which has no reason of its own.
    if isinstance(row, ShareRow):
        return start_text(row.next_start, row.next_start_by, now=now)
    return start_text(row.expected_start, row.expected_start_by, now=now, reason=row.reason)


def dated(row: JobRow | LineRow, *, now: float) -> str:
    """Return the message of a row. Figures of other jobs that are old get their age."""
    age = None if row.message_at is None else now - row.message_at
    # Only messages about holders contain figures that change while a job waits.
    if age is None or age < _FRESH_SECONDS or row.reason not in WAITS_FOR_HOLDERS:
        return row.message
    return f"{row.message} ({duration(age)} ago)"


def ends(at: float | None, *, now: float) -> str:
    """Return the time until GPUs are released: `ends in 12 min`."""
    return "for an unknown time" if at is None else f"ends in {duration(at - now)}"


def jobs(rows: Sequence[JobRow], *, now: float, namespaces: bool, where: str = "") -> str:
    """Return one line per job. `namespaces` adds their namespaces.

    Args:
        rows: rows to show.
        now: Unix time in seconds.
        namespaces: whether names include namespaces.
        where: the namespace and queue of the rows, in words.
    """
    if not rows:
        return f"no jobs{where}\n"
    heads = ("JOB", "QUEUE", "PHASE", "GPUS", "STEP", "LOSS", "AGE", "DETAIL")
    # One tuple per row. `_text` aligns the columns after all widths are known.
    cells = [
        (
            f"{row.namespace}/{row.name}" if namespaces else row.name,
            row.queue,
            row.phase,
            gpus_of(row.gpus, row.partition),
            step(row),
            row.loss or _NOTHING,
            _NOTHING if row.created_at is None else duration(now - row.created_at),
            detail(row, now=now),
        )
        for row in rows
    ]
    # Text columns are left-aligned, and numbers are right-aligned.
    return _text([heads, *cells], left=(0, 1, 2, 7))


def step(row: JobRow) -> str:
    """`120/400`: finished steps of all steps, as far as they are known."""
    if row.step is None:
        return _NOTHING
    return f"{row.step}/{row.total_steps}" if row.total_steps else str(row.step)


def detail(row: JobRow, *, now: float) -> str:
    """Return a job's position in its queue, or its end, with the reason."""
    # Three exclusive states: pending, ended, or running with an expected end.
    if row.position is not None:
        place = f"position {row.position}, starts {starts(row, now=now)}"
        # The operator has not seen a new job yet, or the start is not known for this reason.
        if not row.reason or place.endswith(f": {row.reason}"):
            return place
        return f"{place}: {row.reason}"
    if row.finished_at is not None:
        return f"{duration(now - row.finished_at)} ago: {row.reason}"
    ends = "" if row.expected_end is None else f", ends in {duration(row.expected_end - now)}"
    return f"{row.reason or _NOTHING}{ends}"


def queues(rows: Sequence[QueueRow], *, now: float) -> str:
    """Render each queue with its waiting jobs."""
    if not rows:
        return "no queues\n"
    return "\n".join(f"{_queue_head(row)}\n{_overrides(row)}{_line(row, now=now)}" for row in rows)


def _overrides(row: QueueRow) -> str:
    return "".join(f"  {override_text(each)}\n" for each in row.overrides)


def _queue_head(row: QueueRow) -> str:
    # A deleted queue may still have jobs. Its line must remain visible.
    quotas = ", ".join(map(quota_sentence, row.quotas)) or (
        f"the queue {row.absent or 'has no quota'}"
    )
    budget = budget_text(row.budget)
    workloads = f" and {many(row.workloads, 'other workload')}" if row.workloads else ""
    waits = f"{many(len(row.waiting), 'job')} for {gpus(row.waiting_gpus)}{workloads} pending"
    running = many(row.admitted_jobs, "job")
    # stopPolicy comes first, because it explains why all other lines wait.
    stopped = stop_text(row)
    return (
        f"{row.queue}: {stopped and f'{stopped}; '}{quotas}{budget and f', {budget}'};"
        f" {running} running, {waits}"
    )


def stop_text(row: QueueRow) -> str:
    """Return the effect of the queue's stopPolicy on its jobs, or empty text."""
    # A draining queue still has admitted jobs, so its GPUs are not free yet.
    match row.stop_policy:
        case "HoldAndDrain" if row.admitted_jobs:
            verb = "has" if row.admitted_jobs == 1 else "have"
            return f"drains, {many(row.admitted_jobs, 'job')} still {verb} to leave"
        case "HoldAndDrain":
            return "drained, nothing starts"
        case "Hold":
            return "held, nothing starts"
        case _:
            return ""


_REFILLS: Final = {"Weekly": "a week", "Monthly": "a month"}
_USERS: Final = 4
"""Maximum number of named users."""
_NEAR: Final = 0.8


def budget_text(budget: BudgetRow | None) -> str:
    """`90 of 100 GPU-hours of 30 days spent`, and when all of it is; empty for none."""
    return "" if budget is None else "; ".join(_bounds(budget))


def _bounds(budget: BudgetRow) -> Iterator[str]:
    """Return a part for each limit: of all jobs, in cost, and of users near theirs."""
    # A budget refills by calendar, or over a sliding window of days.
    time = _REFILLS.get(budget.refill) or f"of {many(budget.window_days, 'day')}"
    text = f"{many(budget.spent_gpu_hours, 'GPU-hour')} {time} had"
    if budget.gpu_hours:
        whole = f"{many(budget.gpu_hours, 'GPU-hour')} {time}"
        text = f"{budget.spent_gpu_hours} of {whole} spent"
    # A credit comes from the next refill. It extends the budget beyond its limit.
    if budget.credit_gpu_hours:
        text = f"{text} ({budget.credit_gpu_hours} more on credit)"
    yield text + _then(budget.spent_at, budget.back_at)
    # Cost is a limit of its own. A queue may have both limits.
    if budget.cost:
        money = budget.money or MoneyOutlook()
        spent = f"{budget.spent_cost or 0} of {budget.cost} in cost used"
        yield spent + _then(money.spent_at, money.back_at)
    # Users near their limit come first. Equal users are sorted by name for stable output.
    near = sorted(
        (user for user in budget.users if _is_near(user, budget)),
        key=lambda user: (-user.spent_gpu_hours, user.user),
    )
    for user in near[:_USERS]:
        had = f"{user.user or 'jobs without a user'}: {user.spent_gpu_hours:g}"
        whole = many(budget.user_gpu_hours, "GPU-hour")
        yield f"{had} of {whole} per user used{_then(user.spent_at, user.back_at)}"
    # A long list would hide the queue's own figures, so the rest is counted only.
    if len(near) > _USERS:
        yield f"{many(len(near) - _USERS, 'more user')} near that"


def _is_near(user: UserBudgetRow, budget: BudgetRow) -> bool:
    """Return whether most of the budget is used, or all of it will be."""
    return user.spent_gpu_hours >= _NEAR * budget.user_gpu_hours or user.spent_at is not None


def _then(spent_at: float | None, back_at: float | None) -> str:
    # A budget that will run out matters more than one that refills.
    if spent_at is not None:
        return f", used up on {day(spent_at)} at the current rate"
    return "" if back_at is None else f", some becomes available again on {day(back_at)}"


def quota_sentence(quota: QuotaRow) -> str:
    """Return the used part of a quota."""
    foreign = f", {quota.foreign_gpus} by foreign pods" if quota.foreign_gpus else ""
    whole = many(quota.nominal_gpus, "GPU")
    # A pool with partitions counts parts, and the line names the unit.
    if quota.parts_per_gpu > 1:
        whole = f"{count(quota.nominal_gpus)} parts ({quota.parts_per_gpu} a GPU)"
    # A reader without rights on TrainingQueues still sees jobs. The quota is unknown then.
    used = f"{quota.used_gpus} of {whole}"
    if quota.absent:
        used = many(quota.used_gpus, "GPU")
    text = f"{used} of {quota.pool} held{foreign}"
    text += f"; the pool {GONE}" if quota.is_pool_gone else ""
    return f"{text}; the queue {quota.absent}" if quota.absent else text


def _gpus(row: JobRow | HolderRow) -> str:
    return gpus_of(row.gpus, row.partition) if row.partition else gpus(row.gpus)


def _line(row: QueueRow, *, now: float) -> str:
    """Render a queue's jobs and other workloads that wait."""
    # Jobs and other workloads are merged in the operator's order.
    line = whole_line(row)
    if not line:
        return ""
    heads = ("  #", "JOB", "GPUS", "WAITS", "STARTS", "REASON", "DETAIL")
    cells = [
        (
            f"  {each.position or _NOTHING}",
            each.name,
            gpus_of(each.gpus, each.partition),
            _NOTHING if each.waits_since is None else duration(now - each.waits_since),
            starts(each, now=now),
            each.reason or _NOTHING,
            dated(each, now=now),
        )
        for each in line
    ]
    # The rows contain only the first workloads. The remaining number must not be lost.
    left = row.workloads - len(row.waiting_workloads)
    more = f"  and {many(left, 'other workload')} more\n" if left > 0 else ""
    return _text([heads, *cells], left=(1, 4, 5, 6)) + more


def why(card: WhyCard, *, now: float) -> str:
    """Return the card as a sentence and a line for each part of it."""
    job = card.job
    head = f"{job.namespace}/{job.name}: {job.phase}"
    # Continuation lines repeat no name, so users can scan the first column.
    lines = [f"{head}, {job.reason}" if job.reason else head]
    lines += [f"  {name:<10}{text}" for name, text in _card(card, now=now) if text]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _card(card: WhyCard, *, now: float) -> Iterator[tuple[str, str]]:
    job = card.job
    # Empty parts are dropped by the caller. The order is cause, position, limits, remedy.
    yield "because", dated(job, now=now)
    if job.surplus_pool:
        yield "pool", f"{job.pool}, surplus in {job.surplus_pool}"
    if job.waits_since is not None:
        yield "waits", f"for {duration(now - job.waits_since)}"
    if job.position is not None:
        before = f"; {gpus(card.gpus_ahead)} are requested before it" if card.ahead else ""
        yield "place", f"{job.position} of {card.waiting_jobs} in queue {job.queue}{before}"
        yield "starts", starts(job, now=now)
    # Only the first row of a list carries its label.
    for name, row in zip(("after", *[""] * len(card.ahead)), card.ahead, strict=False):
        yield (
            name,
            (f"{row.namespace}/{row.name}, {_gpus(row)}, starts {starts(row, now=now)}"),
        )
    absent = f"the queue {card.queue_absent}" if card.queue_absent else ""
    yield "quota", ", ".join(map(quota_sentence, card.quotas)) or absent
    yield "budget", budget_text(card.budget)
    yield "override", "" if card.override is None else override_text(card.override)
    yield from holders(card.holders, now=now)
    for number, text in enumerate(foreign_pods(card)):
        yield "" if number else "foreign", text
    for name, sentence in zip(("to do", *[""] * len(card.advice)), card.advice, strict=False):
        yield name, sentence
    # The last line links to the page about this reason.
    yield "see", page_of(job.reason)


def holders(rows: Sequence[HolderRow], *, now: float) -> Iterator[tuple[str, str]]:
    """Return a line for each who holds GPUs."""
    for name, holder in zip(("held by", *[""] * len(rows)), rows, strict=False):
        end = ends(holder.expected_end, now=now)
        yield name, f"{holder.job} of {holder.queue}, {_gpus(holder)}, {end}"


def foreign_pods(card: WhyCard) -> Iterator[str]:
    """Yield a line for each pod that names no queue: `ml/chat-0, 2 GPUs, on node-2`."""
    for pod in card.foreign_pods:
        yield f"{pod.pod}, {gpus(pod.gpus)}, on {pod.node}"
    if card.more_foreign_pods:
        yield f"and {count(card.more_foreign_pods)} more"


def nodes(rows: Sequence[NodeRow]) -> str:
    """Return one line per node."""
    if not rows:
        return "no nodes\n"
    heads = ("NODE", "POOL", "CAPACITY", "DOMAIN", "GPUS", "STATE", "HELD BY", "PROMISED", "WHY")
    cells = [
        (
            row.node,
            row.pool,
            _capacity(row),
            "/".join(row.domains) or _NOTHING,
            f"{row.held_gpus}/{row.gpus}{' parts' if row.parts_per_gpu > 1 else ''}",
            row.state,
            ", ".join((*row.jobs, *row.workloads)) or _NOTHING,
            ", ".join(row.promised_to) or _NOTHING,
            row.why,
        )
        for row in rows
    ]
    return _text([heads, *cells], left=(0, 1, 2, 3, 5, 6, 7, 8))


def _capacity(row: NodeRow) -> str:
    """`Spot 0.90`: what a node is paid as, and the price of a GPU-hour."""
    return f"{row.capacity} {row.price_per_gpu_hour}".rstrip()


def shares(rows: Sequence[ShareRow], *, now: float) -> str:
    """Return one line per queue."""
    if not rows:
        return "no queues\n"
    # Figures of shares may be fractions, because usage decays with time.
    heads = ("QUEUE", "COHORT", "GPUS", "BORROWED", "WEIGHT", "DUE", "HAD", "OWED", "NEXT")
    cells = [
        (
            row.queue,
            row.cohort,
            f"{round(row.used_gpus, 2):g}/{_if_known(row, f'{round(row.nominal_gpus, 2):g}')}",
            _if_known(row, f"{round(row.borrowed_gpus, 2):g}"),
            _if_known(row, str(row.weight)),
            _if_known(row, percent(row.due)),
            _NOTHING if row.had is None else percent(row.had),
            # A positive value means that the queue received less than its share.
            _NOTHING if row.owed is None else f"{row.owed * 100:+.1f} %",
            f"{row.next_job}, {starts(row, now=now)}" if row.next_job else "nobody waits",
        )
        for row in rows
    ]
    # All absent queues have one reason: their list was read, or not.
    absent = {row.absent for row in rows if row.absent}
    remark = "".join(
        f"?: the queue {why}: {', '.join(row.queue for row in rows if row.absent == why)}\n"
        for why in sorted(absent)
    )
    return _text([heads, *cells], left=(0, 1, 8)) + remark + _sums(rows)


def _if_known(row: ShareRow, text: str) -> str:
    return "?" if row.absent else text


def _sums(rows: Sequence[ShareRow]) -> str:
    """Return how the share of each queue adds up, for queues with GPUs of several pools."""
    # Single-pool queues with weight 1 need no explanation. Their sum is obvious.
    weighted = any(part.weight != 1 for row in rows for part in row.parts)
    summed = [row for row in rows if len(row.parts) > 1 or (weighted and row.parts)]
    if not summed:
        return ""
    lines = ["", "Shares add GPUs over pools, each with its pool's shareWeight:"]
    for row in summed:
        whole = sum(part.gpus * part.weight for part in row.parts)
        parts = " + ".join(
            f"{round(part.gpus, 2):g} of {part.pool} x {part.weight}" for part in row.parts
        )
        lines.append(f"  {row.queue}: {round(whole, 2):g} = {parts}")
    return "\n".join(lines) + "\n"


def usage(rows: Sequence[UsageRow], *, by: Sequence[str]) -> str:
    """Return one line per group, in GPU-hours, and their sum."""
    if not rows:
        return "no GPUs were held\n"
    heads = (*map(str.upper, by), "JOBS", "GPU-HOURS", "PRODUCTIVE", "STARTING", "REPEATED")
    # Sums first. The optional columns depend on them.
    whole = UsageRow(
        by=(),
        jobs=sum(row.jobs for row in rows),
        gpu_seconds=sum(row.gpu_seconds for row in rows),
        productive=sum(row.productive for row in rows),
        starting=sum(row.starting for row in rows),
        repeated=sum(row.repeated for row in rows),
        recovering=sum(row.recovering for row in rows),
        foreign=sum(row.foreign for row in rows),
        workloads=sum(row.workloads for row in rows),
        estimated_gpu_seconds=sum(row.estimated_gpu_seconds for row in rows),
    )
    # Optional columns appear only if a row has a value, so that a narrow terminal suffices.
    foreign = ("FOREIGN", "NO JOBS") if whole.foreign else ()
    guessed = ("ESTIMATED",) if whole.estimated_gpu_seconds else ()
    limited = ("BUDGET",) if any(row.budget for row in rows) else ()
    lines = [
        (*heads, "RECOVERING", *guessed, *foreign, *limited),
        *(
            (
                *row.by,
                *_amounts(row, whole=whole),
                *((budget_text(row.budget) or _NOTHING,) if limited else ()),
            )
            for row in rows
        ),
        (
            # The label of the sum takes the first group column. The others stay empty.
            *("all", *[""] * (len(by) - 1)),
            *_amounts(whole, whole=whole),
            *((_NOTHING,) if limited else ()),
        ),
    ]
    # A budget is text, so it is left-aligned like the group columns.
    last = (len(lines[0]) - 1,) if limited else ()
    return _text(lines, left=(*range(len(by)), *last))


def _amounts(row: UsageRow, *, whole: UsageRow) -> tuple[str, ...]:
    """Return the cells of a row, without the columns that are zero in the sum of all rows."""
    parts = [row.productive, row.starting, row.repeated, row.recovering]
    parts += [row.estimated_gpu_seconds] if whole.estimated_gpu_seconds else []
    parts += [row.foreign] if whole.foreign else []
    # A job that never held a GPU has no shares. A division by zero must not end the command.
    shares_of = (percent(part / row.gpu_seconds) if row.gpu_seconds else _NOTHING for part in parts)
    workloads = (count(row.workloads),) if whole.foreign else ()
    return (count(row.jobs), f"{row.gpu_seconds / _HOUR:.1f}", *shares_of, *workloads)


def _text(cells: Sequence[Sequence[str]], *, left: Sequence[int]) -> str:
    return "".join(f"{line}\n" for line in columns(cells, left=left))
