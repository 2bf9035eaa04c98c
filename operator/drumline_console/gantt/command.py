"""Run `drumline gantt`: draw jobs over time in the terminal, as a page or as a picture."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from drumline.overview.gantt import rows_of
from drumline.overview.rows import GanttRow
from drumline_cli.commands import Output
from drumline_cli.errors import BadInput, install_extra
from drumline_cli.overview.command import output_of, wanted_jobs
from drumline_cli.overview.period import Length, begin_of, period_of
from drumline_console.gantt import text
from drumline_console.gantt.chart import page


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Print the chart, or save it.

    Raises:
        CommandError: the cluster refuses, or an argument or the file is invalid.
    """
    ahead = period_of(chosen.ahead)
    if not isinstance(ahead, Length):
        raise BadInput(f"invalid --ahead {chosen.ahead}: want a duration such as 90m, 12h or 2d")
    if chosen.save is not None and chosen.save.suffix not in {".png", ".html"}:
        raise BadInput(
            f"invalid --save {chosen.save}: want a file name that ends with .png or .html"
        )
    cluster, _, jobs = wanted_jobs(chosen, environment)
    now = cluster.as_of
    begins = begin_of(chosen.since, now=now) or now
    if begins >= now:
        raise BadInput(f"invalid --since {chosen.since}: must be before now")
    ends = now + ahead.seconds
    rows = rows_of(jobs, now=now, since=begins, until=ends)
    if chosen.save is not None:
        _save(rows, chosen.save, now=now, since=begins, until=ends)
        return Output(text=f"{chosen.save}\n")
    width = shutil.get_terminal_size((120, 40)).columns
    table = text.render(rows, now=now, since=begins, until=ends, width=width)
    return output_of(chosen, cluster, rows, table=table)


def _save(rows: Sequence[GanttRow], file: Path, *, now: float, since: float, until: float) -> None:
    if file.suffix == ".png":
        try:
            from drumline_console.gantt import picture  # noqa: PLC0415 - matplotlib is optional
        except ImportError:
            raise BadInput(f"a PNG needs matplotlib. {install_extra('simulator')}") from None
        picture.save(rows, file, now=now, since=since, until=until)
        return
    try:
        file.write_text(page(rows, now=now, since=since, until=until), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}") from None
