"""Builds the report of a job from its object. Pure: the same input makes the same report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from drumline.lifecycle.incidents.gpu_seconds import account_at
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline_api.conditions import DisruptionKind, Phase, Reason
from drumline_api.trainingjob import TrainingJob, TrainingJobStatus
from drumline_cli.formatting import clock, count, duration, many, moment
from drumline_cli.report import advice
from drumline_cli.report.incidents import (
    budgets_of,
    gpu_second_shares,
    incidents_of,
    losses_by_cause,
)
from drumline_cli.report.job_input import JobInput
from drumline_cli.report.model import Health, JobReport, SummaryRow
from drumline_cli.report.timeline import timeline
from drumline_contract import plain, prompt_answers, rank_compute, step_series

_HEALTH: Final = {
    Phase.RUNNING: Health.WELL,
    Phase.SUCCEEDED: Health.WELL,
    Phase.RECOVERING: Health.RECOVERS,
    Phase.STARTING: Health.RECOVERS,
    Phase.FAILED: Health.FAILED,
}
# The phase alone would hide these messages.
_SAID_BESIDES: Final = frozenset(
    {Reason.RANKS_ENDED, Reason.PROGRESS_UNREADABLE, Reason.NO_STEPS, Reason.STAYS_IDLE}
)
"""Reasons of a job that runs, of which the message says more."""
_UNSEEN: Final = "Not seen"
_DIGEST_CHARS: Final = len("sha256:") + 12


def build_report(job_input: JobInput) -> JobReport:
    """Return the report of one job at one moment."""
    job = job_input.job
    # A new job has no status until the operator has seen it.
    status = job.status or TrainingJobStatus()
    # Incidents, budgets and shares are computed first, because several sections use them.
    incidents = incidents_of(status, now=job_input.as_of)
    budgets = budgets_of(status, job.spec.recovery, now=job_input.as_of)
    shares = gpu_second_shares(account_at(job.spec, status, now=job_input.as_of))
    return JobReport(
        namespace=job_input.namespace,
        name=job_input.name,
        as_of=job_input.as_of,
        # An unknown phase of a newer operator counts as waiting.
        health=Health.WAITS if status.phase is None else _HEALTH.get(status.phase, Health.WAITS),
        phase=_UNSEEN if status.phase is None else status.phase,
        reason=plain(status.reason or ""),
        summary=" ".join(_sentences(job, status)),
        progress=_progress(status),
        series=step_series.decode(status.series or ""),
        compute_by_rank=rank_compute.decode(status.compute_by_rank or ""),
        answers=prompt_answers.decode(status.prompt_answers or ""),
        # Figures that are unknown have no row.
        facts=tuple(
            SummaryRow(name=name, value=value)
            for name, value in _facts(job_input, job, status)
            if value
        ),
        incidents=incidents,
        shares=shares,
        losses=losses_by_cause(shares, incidents),
        budgets=budgets,
        timeline=timeline(
            status, created_at=job_input.created_at, incidents=incidents, now=job_input.as_of
        ),
        next_steps=advice.next_steps(job, incidents=incidents, budgets=budgets),
        events=job_input.events,
        remarks=job_input.remarks,
    )


def _sentences(job: TrainingJob, status: TrainingJobStatus) -> Iterator[str]:
    """Return the current activity of the job, and its reason."""
    # Messages come from the operator and from programs, so control characters are removed.
    message = _sentence(plain(status.message or ""))
    match status.phase:
        case None:
            yield "The operator has not processed it yet."
        case Phase.RUNNING if status.reason == Reason.STORAGE_UNAVAILABLE:
            yield f"Training waits for the checkpoint storage. {message}"
        case Phase.RUNNING if status.reason == Reason.HELD:
            yield f"Its program failed, and its pods are kept for inspection. {message}"
        case Phase.RUNNING:
            yield _running(job, status)
            if status.reason in _SAID_BESIDES:
                yield message
        case Phase.PENDING:
            yield f"It waits. {message}"
        case Phase.STARTING:
            yield f"It has its nodes, and its pods are starting. {message}"
        case Phase.RECOVERING:
            yield f"Training is paused while it recovers. {message}"
        case Phase.SUSPENDED:
            yield _suspended(job, status)
        case Phase.SUCCEEDED | Phase.FAILED:
            yield message or f"It has {status.phase.lower()}."
    # An announced disruption matters in every phase.
    if status.disruption is not None:
        yield _disruption(status)


def _suspended(job: TrainingJob, status: TrainingJobStatus) -> str:
    # A suspension by the operator has another remedy than one by the user.
    if status.reason == Reason.IDLE_GPUS:
        return f"It was suspended and holds no GPUs: {_sentence(plain(status.message or ''))}"
    return f"It is suspended by its user and holds no GPUs. {_resumption(job)}"


def _resumption(job: TrainingJob) -> str:
    # A template's program decides itself what it saves.
    if job.spec.template is not None:
        return (
            "Its pods start again when it continues. Drumline does not know what a template's"
            " program saved."
        )
    if job.spec.checkpoint is None:
        return "It has no checkpoint storage, so it begins at step 0 when it continues."
    return "It resumes from its newest checkpoint."


def _running(job: TrainingJob, status: TrainingJobStatus) -> str:
    placed = status.assignment
    joining = (placed.joining or []) if placed else []
    # Joining pods have no rank yet, so they do not count.
    size = _ranks(job, status) - len(joining)
    pool = f" in pool {plain(placed.gpu_pool)}" if placed else ""
    # Surplus pods run in another pool, usually on spot nodes.
    if placed is not None and placed.surplus is not None:
        beyond, where = len(placed.surplus.indices), plain(placed.surplus.gpu_pool)
        pool += f", {count(beyond)} of these in spot pool {where}"
    gpus = many(size * job.spec.gpus_per_node, "GPU")
    sentence = f"It trains on {gpus} of {many(size, 'node')}{pool}."
    if joining:
        return f"{sentence} {_pods(joining)} will join when all of them are ready."
    # An elastic job may run below its wanted size.
    if size < job.spec.nodes:
        return f"{sentence} It wants {count(job.spec.nodes)} nodes and grows when they are free."
    return sentence


def _disruption(status: TrainingJobStatus) -> str:
    coming = status.disruption
    assert coming is not None  # noqa: S101 - the caller has looked
    subject = "It" if coming.indices is None else _pods(coming.indices)
    source = f"({coming.kind}, announced by {plain(coming.by)})"
    # Without a deadline the move waits for a replacement node.
    if coming.deadline is None:
        return f"{subject} moves when another node is found, or is drained {source}."
    if coming.kind is DisruptionKind.PREEMPTION:
        why = f"{subject} is preempted by {plain(coming.by)}"
    elif coming.kind is DisruptionKind.QUEUE_STOPPED:
        why = f"{subject} leaves, because {plain(coming.by)} is stopped"
    elif coming.kind is DisruptionKind.IDLE:
        why = f"{subject} is suspended, because its GPUs are idle"
    else:
        why = f"{subject} will be moved {source}"
    deadline = moment(coming.deadline)
    until = "" if deadline is None else f", at the latest by {clock(deadline)}"
    return f"{why}. It first saves a checkpoint{until}."


def _pods(indices: list[int], *, most: int = 8) -> str:
    # A large gang may have hundreds of pods, so only the first indices are listed.
    shown = ", ".join(map(str, indices[:most]))
    more = f" and {len(indices) - most} more" if len(indices) > most else ""
    return f"Its pod{'' if len(indices) == 1 else 's'} {shown}{more}"


def _facts(
    job_input: JobInput, job: TrainingJob, status: TrainingJobStatus
) -> Iterator[tuple[str, str]]:
    yield "Queue", plain(job.spec.queue)
    yield "Size", _size(job, status)
    yield "Pods ready", plain(status.ready or "")
    yield "Step", _step(status)
    yield "Loss", plain(status.loss or "")
    yield "Tokens/s", "" if status.tokens_per_second is None else count(status.tokens_per_second)
    yield "Code", plain(status.code_digest or "")[:_DIGEST_CHARS]
    yield "Layout", plain(status.layout or "")
    yield "Time left", _time_left(job, status, now=job_input.as_of)
    yield "Checkpoint", "" if status.checkpoint is None else f"step {count(status.checkpoint.step)}"
    yield "Membership", "" if status.generation is None else f"generation {status.generation}"
    since = job_input.created_at
    yield "Age", "" if since is None else duration(job_input.as_of - since)


def _size(job: TrainingJob, status: TrainingJobStatus) -> str:
    wanted = job.spec.nodes
    nodes = _ranks(job, status)
    shape = f"{nodes} x {job.spec.gpus_per_node} GPUs"
    for role in job.spec.roles or ():
        gpus = f" x {role.gpus_per_node} GPUs" if role.gpus_per_node else ""
        shape += f", {role.nodes} {plain(role.name)}{gpus}"
    return shape if nodes == wanted else f"{shape}, wants {wanted} nodes"


def _ranks(job: TrainingJob, status: TrainingJobStatus) -> int:
    if status.assignment is None:
        return job.spec.nodes
    # Pods of roles have nodes but no ranks.
    return len(status.assignment.nodes) - sum(role.nodes for role in job.spec.roles or ())


def _step(status: TrainingJobStatus) -> str:
    if status.step is None:
        return ""
    if not status.total_steps:
        return count(status.step)
    return f"{count(status.step)} of {count(status.total_steps)}"


def _progress(status: TrainingJobStatus) -> float | None:
    if status.step is None or not status.total_steps:
        return None
    # A resumed run can pass the planned number of steps.
    return min(status.step / status.total_steps, 1.0)


def _time_left(job: TrainingJob, status: TrainingJobStatus, *, now: float) -> str:
    trainer, speed = job.spec.trainer, status.tokens_per_second
    running = status.phase is Phase.RUNNING
    # The operator's forecast is better than the speed, so it comes first.
    end = None if status.expected_end is None else parse_timestamp(status.expected_end)
    if running and end is not None and end > now:
        return f"about {duration(end - now)}"
    # Without a forecast, speed and remaining steps give an estimate.
    if not (running and trainer and speed and status.step is not None and status.total_steps):
        return ""
    tokens = trainer.global_batch_size * trainer.sequence_length
    return f"about {duration((status.total_steps - status.step) * tokens / speed)}"


def _sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")
