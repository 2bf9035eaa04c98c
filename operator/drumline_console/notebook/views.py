"""Show results as values: a card in a notebook, a table in a terminal.

A view is the state of the cluster at one moment, and never reads again. `rows()` equals the output
of `-o json`, with every field in every row, so that `pandas.DataFrame(view.rows())` has columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

import msgspec

from drumline.overview.rows import JobRow, OverviewRow, QueueRow, WhyCard
from drumline_cli.formatting import clock, count, duration, gpus, gpus_of, many, percent
from drumline_cli.jobs.follow import LogLine
from drumline_cli.markup import Markup
from drumline_cli.overview import tables
from drumline_cli.report import html, text
from drumline_cli.report.model import JobReport
from drumline_console.notebook.cards import bar, bullets, card, facts, log, sentence, table, title

Json = dict[str, Any]
R = TypeVar("R", bound=OverviewRow)
# A longer list would fill the notebook. The report's page has all events.
_MOST_EVENTS = 10


def row_values(row: OverviewRow) -> Json:
    """Return every field by its JSON name, with defaults for missing values."""
    # Encoding drops defaults, so they are added again. Every row then has the same columns.
    given: Json = msgspec.json.decode(msgspec.json.encode(row))
    return {
        field.encode_name: given.get(field.encode_name, field.default)
        for field in msgspec.structs.fields(row)
    }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _RowView(Generic[R]):
    """Rows that were read together. Supports len, indexing and iteration like a sequence.

    Attributes:
        items: the rows.
        as_of: time of the read, in seconds since the epoch.
        remarks: sentences about objects that could not be read.
    """

    items: Sequence[R]
    as_of: float
    remarks: Sequence[str] = ()

    def rows(self) -> list[Json]:
        """Return each row as plain values."""
        return [row_values(row) for row in self.items]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> R:
        return self.items[index]

    def __iter__(self) -> Iterator[R]:
        return iter(self.items)

    def _with_remarks(self, shown: str) -> str:
        # Remarks follow the rows, because rows are what the user asked for.
        return "\n".join((shown.rstrip("\n"), *self.remarks))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JobTable(_RowView[JobRow]):
    """Jobs: first those that hold GPUs, then pending jobs, then ended jobs."""

    # Plain text for terminals. Jupyter prefers the HTML form if both exist.
    def __repr__(self) -> str:
        return self._with_remarks(tables.jobs(self.items, now=self.as_of, namespaces=True))

    def _repr_html_(self) -> str:
        shown = _job_table(self.items, now=self.as_of) or sentence("no jobs")
        return card(shown, as_of=self.as_of, remarks=self.remarks)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class QueueTable(_RowView[QueueRow]):
    """Queues with their quotas and pending jobs."""

    def __repr__(self) -> str:
        return self._with_remarks(tables.queues(self.items, now=self.as_of))

    def _repr_html_(self) -> str:
        parts: list[str] = []
        for row in self.items:
            # One block per queue. A queue without jobs still shows its quota.
            parts += [
                title(row.queue),
                *(sentence(tables.quota_sentence(quota)) for quota in row.quotas),
                *(sentence(text) for text in (tables.stop_text(row),) if text),
                sentence(
                    f"{many(row.admitted_jobs, 'job')} running, {many(len(row.waiting), 'job')}"
                    f" for {gpus(row.waiting_gpus)} pending"
                ),
                _line(row.waiting, now=self.as_of),
            ]
        # An empty result is also an answer. A blank cell would look like a failure.
        return card(*(parts or [sentence("no queues")]), as_of=self.as_of, remarks=self.remarks)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WhyView:
    """Why a job waits, and what would help.

    Attributes:
        card: reason, position, holders of the GPUs, and advice.
        as_of: time of the read, in seconds since the epoch.
        remarks: sentences about objects that could not be read.
    """

    card: WhyCard
    as_of: float
    remarks: Sequence[str] = ()

    def rows(self) -> list[Json]:
        """Return the card as plain values, in one row."""
        return [row_values(self.card)]

    def __repr__(self) -> str:
        shown = tables.why(self.card, now=self.as_of).rstrip("\n")
        return "\n".join((shown, *self.remarks))

    def _repr_html_(self) -> str:
        why, job, now = self.card, self.card.job, self.as_of
        # Only a pending job has a position. The same card also shows a running job.
        waits = job.position is not None
        holders = [
            (
                each.job,
                each.queue,
                gpus_of(each.gpus, each.partition),
                tables.ends(each.expected_end, now=now),
            )
            for each in why.holders
        ]
        return card(
            title(f"{job.namespace}/{job.name}", job.phase, job.reason),
            # The message contains figures, such as the GPUs that are free.
            sentence(job.message),
            facts(
                (
                    ("Position", f"{job.position} of {why.waiting_jobs}" if waits else ""),
                    ("Starts", tables.starts(job, now=now) if waits else ""),
                    ("Requested before it", gpus(why.gpus_ahead) if why.ahead else ""),
                    ("Quota", ", ".join(map(tables.quota_sentence, why.quotas))),
                )
            ),
            # Tables come after the facts, because they can be long.
            _line(why.ahead, now=now),
            table(("holders of GPUs it can get", "queue", "GPUs", "ends"), holders),
            bullets("Foreign pods with GPUs it can get:", tuple(tables.foreign_pods(why))),
            bullets("What to do:", why.advice),
            as_of=now,
            remarks=self.remarks,
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReportView:
    """Report of a job: its state, its history, and what to do.

    Attributes:
        report: all figures and sentences of the report.
    """

    report: JobReport

    def rows(self) -> list[Json]:
        """Return its incidents as plain values, newest first."""
        # Incidents are dataclasses, not API rows, so their names stay in Python style.
        return [asdict(incident) for incident in self.report.incidents]

    def page(self) -> str:
        """Return the whole report as one HTML file, as `drumline report -o html` writes it."""
        return html.render(self.report)

    def __repr__(self) -> str:
        # No colours, because the text may be written to a file.
        return text.render(self.report, colours=False).rstrip("\n")

    def _repr_html_(self) -> str:
        report = self.report
        # Convert times and durations here. The card itself only lays out text.
        incidents = [
            (
                clock(each.at),
                each.fault_class,
                each.cause,
                each.root_cause,
                duration(each.seconds) if each.over else "not over",
            )
            for each in report.incidents
        ]
        events = [
            (event.reason, event.note, count(event.times)) for event in report.events[:_MOST_EVENTS]
        ]
        goodput = "" if report.goodput is None else percent(report.goodput)
        return card(
            title(f"{report.namespace}/{report.name}", report.phase, report.reason),
            sentence(report.summary),
            # The progress bar is left out while the number of steps is unknown.
            Markup("") if report.progress is None else bar(report.progress),
            facts((*((fact.name, fact.value) for fact in report.facts), ("Goodput", goodput))),
            table(("incident", "class", "cause", "root cause", "took"), incidents),
            bullets("What to do:", report.next_steps),
            table(("event", "what", "times"), events),
            as_of=report.as_of,
            remarks=report.remarks,
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JobLog:
    """Logs of a job's pods, in order of time.

    Attributes:
        lines: lines with their time and the index of their pod.
        as_of: time of the read, in seconds since the epoch.
    """

    lines: Sequence[LogLine]
    as_of: float

    def rows(self) -> list[Json]:
        """Return each line as plain values: `at`, `index`, `text`."""
        return [asdict(line) for line in self.lines]

    def __repr__(self) -> str:
        return "\n".join(line.shown for line in self.lines) or "no lines"

    def _repr_html_(self) -> str:
        shown = log(line.shown for line in self.lines) if self.lines else sentence("no lines")
        return card(shown, as_of=self.as_of)


def job_text(row: JobRow, *, now: float) -> str:
    """Return a job in one line."""
    parts = (
        f"{row.namespace}/{row.name}: {row.phase}",
        f"step {tables.step(row)}" if row.step is not None else "",
        f"loss {row.loss}" if row.loss else "",
        tables.detail(row, now=now),
    )
    return ", ".join(part for part in parts if part)


def job_card(row: JobRow, *, as_of: float, remarks: Sequence[str]) -> str:
    """Return a job's card: its phase, its progress, and when it starts or ends.

    Args:
        row: row of the job.
        as_of: Unix time at which the data was read.
        remarks: remarks about the cluster.
    """
    # A share needs both figures. A job of unknown length has no bar.
    share = row.step / row.total_steps if row.step is not None and row.total_steps else None
    speed = "" if row.tokens_per_second is None else f"{count(row.tokens_per_second)} tokens/s"
    return card(
        title(f"{row.namespace}/{row.name}", row.phase, row.reason),
        sentence(row.message),
        Markup("") if share is None else bar(share),
        facts(
            (
                ("Queue", row.queue),
                ("GPUs", gpus_of(row.gpus, row.partition)),
                ("Pool", row.pool),
                ("Surplus in", row.surplus_pool),
                ("Pods ready", row.ready),
                ("Step", "" if row.step is None else tables.step(row)),
                ("Loss", row.loss),
                ("Speed", speed),
                ("Now", tables.detail(row, now=as_of)),
            )
        ),
        # The detail contains the position, or the expected end.
        as_of=as_of,
        remarks=remarks,
    )


def _job_table(rows: Sequence[JobRow], *, now: float) -> Markup:
    # Columns match `drumline list`, so users can compare both.
    heads = ("job", "queue", "phase", "GPUs", "step", "loss", "detail")
    cells = [
        (
            f"{row.namespace}/{row.name}",
            row.queue,
            row.phase,
            gpus_of(row.gpus, row.partition),
            tables.step(row),
            row.loss,
            tables.detail(row, now=now),
        )
        for row in rows
    ]
    return table(heads, cells)


def _line(rows: Sequence[JobRow], *, now: float) -> Markup:
    heads = ("#", "job", "GPUs", "starts", "why")
    cells = [
        # A job that is not in line has no position.
        (
            str(row.position or ""),
            f"{row.namespace}/{row.name}",
            gpus_of(row.gpus, row.partition),
            tables.starts(row, now=now),
            f"{row.reason} {row.message}".strip(),
        )
        for row in rows
    ]
    return table(heads, cells)
