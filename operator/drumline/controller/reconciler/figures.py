"""When the figures in a job's status are due: step, loss, speed, layout."""

from __future__ import annotations

from drumline.controller.agents.watch import GangReport
from drumline.controller.reconciler.job_memory import JobMemory
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.sizes import chooses_layout


def figures_due(
    job: Job, report: GangReport | None, memory: JobMemory, *, now: float, every: float
) -> bool:
    """Whether figures are to be written now; the memory then takes note of it.

    Once in `every` seconds, and once in a membership as soon as its ranks train in another layout
    than the status shows: after a change of size that would be another gang's, for a minute.

    Args:
        job: it trains.
        report: the latest of its agents.
        memory: of the job.
        now: seconds since the epoch.
        every: seconds between two writes.
    """
    if memory.figures_at is None:  # the first write comes one interval after the start
        memory.figures_at = now
    another = memory.layout_generation != job.status.generation and _is_another_layout(job, report)
    if now < memory.figures_at + every and not another:
        return False
    memory.figures_at = now
    if another:
        memory.layout_generation = job.status.generation
    return True


def _is_another_layout(job: Job, report: GangReport | None) -> bool:
    """Whether the ranks of this membership train in a layout that the status does not show.

    Of a first start only where they chose it: of any other it is as written, and costs no write.
    """
    if report is None or report.status.generation != job.status.generation:
        return False
    reported, shown = report.status.progress.layout, job.status.layout
    if not reported or reported == shown:
        return False
    return shown is not None or chooses_layout(job.spec)
