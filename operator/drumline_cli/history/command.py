"""Runs `drumline history`: the jobs of the archive as rows, or the report of one."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Final

from drumline.overview.jobs import job_row
from drumline.overview.objects import ClusterObjects
from drumline.overview.rows import JobRow
from drumline_addons.archive.reading import EndedJob
from drumline_cli.archived_jobs import archived_jobs, archived_logs, refuse_identity
from drumline_cli.columns import columns
from drumline_cli.commands import Output
from drumline_cli.errors import BadInput, NotAnswered
from drumline_cli.formatting import clock, duration
from drumline_cli.overview.json_output import as_json
from drumline_cli.overview.period import begin_of
from drumline_cli.overview.tables import step
from drumline_cli.report import from_archive
from drumline_cli.report.builder import build_report
from drumline_cli.report.rendering import render
from drumline_contract import plain, plain_lines

_HEADS: Final = (
    *("ENDED", "JOB", "QUEUE", "USER", "PHASE", "RAN", "GPU-HOURS", "RESTARTS", "STEP", "LOSS"),
    "DETAIL",
)
_NOTHING: Final = "-"


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Return the rows, or the report.

    Raises:
        CommandError: the archive cannot be read, there is no such job in it, or an argument cannot
            be used.
    """
    refuse_identity(chosen)
    now = time.time()
    # The period limits which days of the archive are read.
    since = begin_of(chosen.since, now=now)
    archived = archived_jobs(
        chosen.archive, environment, since=since, namespace=chosen.namespace, name=chosen.job
    )
    if chosen.job is not None:
        last = _last(archived.jobs, name=chosen.job)
        # Logs are printed alone, so they can be piped.
        if chosen.logs:
            lines = archived_logs(chosen.archive, environment, last.path)
            return Output(text=plain_lines(lines.decode(errors="replace")))
        return _report(last, chosen, environment, earlier=len(archived.jobs) - 1)
    if chosen.logs:
        raise BadInput("--logs needs a job: drumline history JOB --logs")
    ended = [
        each.job
        for each in archived.jobs
        if chosen.queue in {None, each.job.spec.queue} and chosen.user in {None, each.job.spec.user}
    ]
    rows = [job_row(job, now=now, position=None) for job in ended]
    # The archive is read by day, so the exact bound is applied here.
    rows = [row for row in rows if since is None or (row.finished_at or 0.0) >= since]
    rows = rows if chosen.limit is None else rows[: chosen.limit]
    if chosen.output == "json":
        cluster = ClusterObjects(as_of=now, remarks=archived.remarks)
        return Output(text=as_json("history", rows, cluster))
    return Output(text=table(rows) + "".join(f"{remark}\n" for remark in archived.remarks))


def _last(ended: Sequence[EndedJob], *, name: str) -> EndedJob:
    if not ended:
        raise NotAnswered(f"the archive has no ended job {name!r}")
    namespaces = sorted({each.path.namespace for each in ended})
    # Names are unique only within a namespace.
    if len(namespaces) > 1:
        raise NotAnswered(
            f"job {name!r} exists in several namespaces ({', '.join(map(plain, namespaces))});"
            " use -n to select one"
        )
    return ended[0]


def _report(
    last: EndedJob, chosen: argparse.Namespace, environment: Mapping[str, str], *, earlier: int
) -> Output:
    """Return the report of a job, as it was when it ended."""
    read = from_archive.read(last, earlier=earlier)
    output = "text" if chosen.output == "table" else chosen.output
    return Output(text=render(build_report(read), output=output, environment=environment))


def table(rows: Sequence[JobRow]) -> str:
    """Return one line per job."""
    if not rows:
        return "no jobs ended in this period\n"
    cells = [
        (
            _NOTHING if row.finished_at is None else clock(row.finished_at),
            f"{row.namespace}/{row.name}",
            row.queue,
            row.user or _NOTHING,
            row.phase,
            _ran(row),
            f"{(row.gpu_seconds or 0) / 3600:.1f}",
            str(row.restarts or 0),
            step(row),
            row.loss or _NOTHING,
            row.reason,
        )
        for row in rows
    ]
    return "".join(f"{line}\n" for line in columns([_HEADS, *cells], left=(0, 1, 2, 3, 4, 10)))


def _ran(row: JobRow) -> str:
    """Return the time from a job's first start to its end."""
    if row.started_at is None or row.finished_at is None:
        return _NOTHING
    ran = row.finished_at - row.started_at
    return duration(ran) if ran >= 1.0 else "< 1 s"  # statuses have whole seconds
