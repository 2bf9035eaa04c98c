"""Render the pages of the archive: ended jobs, and the report of one."""

from __future__ import annotations

from typing import Final

from drumline.overview.jobs import job_row
from drumline_addons.archive.reading import EndedJob
from drumline_cli.archived_jobs import ArchivedJobs
from drumline_cli.formatting import clock, duration, many
from drumline_cli.markup import Markup, element, joined
from drumline_cli.report import from_archive, html
from drumline_cli.report.builder import build_report
from drumline_console.ui.archive_source import SHOWN_DAYS
from drumline_console.ui.links import ended_path
from drumline_console.ui.parts import NOTHING, document, foot, section, table

MOST_ENDED: Final = 200
_HEADS: Final = (
    *("job", "queue", "user", "phase", "ran", "GPU-hours", "restarts", "step", "loss", "ended"),
)


def history(ended: ArchivedJobs, *, now: float) -> str:
    """Render the jobs that ended recently, whether or not they still exist."""
    shown, left = ended.jobs[:MOST_ENDED], len(ended.jobs) - MOST_ENDED
    lead = f"{many(len(ended.jobs), 'job')} ended within {SHOWN_DAYS} days, from the archive"
    more = element("p", f"{many(left, 'job')} more: drumline history", class_="soft")
    rows = table("History", _HEADS, (_cells(each, now=now) for each in shown))
    parts = (
        element("nav", element("a", "\N{LEFTWARDS ARROW} all jobs", href="./")),
        element("header", element("h1", "History"), element("p", lead, class_="lead")),
        section("Ended", rows, more if left > 0 else "") if shown else "",
        foot(ended.remarks, as_of=now),
    )
    return document("History", joined(*(part for part in parts if part)), up="")


def ended_job(ended: EndedJob) -> str:
    """Render the report of a job as it was when it ended.

    Raises:
        NotAnswered: this version cannot read it.
    """
    report = build_report(from_archive.read(ended))
    back = element("nav", element("a", "\N{LEFTWARDS ARROW} history", href="../../../history"))
    title = f"{ended.path.namespace}/{ended.path.name}"
    content = html.sections(report, above=back, second=Markup(""))
    return document(title, content, up="../../../")


def _cells(ended: EndedJob, *, now: float) -> tuple[str, ...]:
    row = job_row(ended.job, now=now, position=None)
    ran = (
        NOTHING
        if row.started_at is None or row.finished_at is None
        else duration(row.finished_at - row.started_at)
    )
    return (
        element("a", f"{row.namespace}/{row.name}", href=ended_path(ended.path)),
        row.queue,
        row.user or NOTHING,
        row.phase,
        ran,
        f"{(row.gpu_seconds or 0) / 3600:.1f}",
        str(row.restarts or 0),
        NOTHING if row.step is None else f"{row.step}/{row.total_steps or '?'}",
        row.loss or NOTHING,
        NOTHING if row.finished_at is None else clock(row.finished_at),
    )
