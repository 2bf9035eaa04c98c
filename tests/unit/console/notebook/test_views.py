"""What is shown of a cluster: cards that escape everything, tables, and rows for a DataFrame."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from drumline.overview.jobs import job_rows, lines, positions
from drumline.overview.objects import ClusterObjects
from drumline.overview.queues import queue_rows
from drumline.overview.why import why_card
from drumline_api.conditions import Reason
from drumline_cli.jobs.follow import LogLine
from drumline_console.notebook.cards import MOST_ROWS, bar, table
from drumline_console.notebook.views import (
    JobLog,
    JobTable,
    QueueTable,
    ReportView,
    WhyView,
    job_card,
    job_text,
)
from tests.texts import missing
from tests.unit.cli.manifests import a_manifest, a_report, a_running_status, an_event, an_incident
from tests.unit.overview.objects import NOW, a_cluster, a_job, a_queue, at, running

EVIL = "</style><script>alert(1)</script>\"'&<img src=x onerror=alert(1)>;background:url(//x)"


class Tags(HTMLParser):
    """The elements of a card, what their attributes are, and its text."""

    def __init__(self, card: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.styles: set[str] = set()
        self.text = ""
        self.open: list[str] = []
        self.feed(card)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.styles |= {value or "" for name, value in attrs if name == "style"}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def site(foreign: str = "plain") -> ClusterObjects:
    """A job that runs and two that wait, with foreign text wherever somebody may write some."""
    told_by_a_tenant = {"message": foreign, "loss": foreign, "ready": foreign}
    blocked = {"phase": "Pending", "reason": foreign, "message": foreign}
    return a_cluster(
        a_queue("research", gpus=8),
        a_job(
            "llama",
            spec={"user": foreign},
            status=running(step=420, totalSteps=1000, expectedEnd=at(5000), **told_by_a_tenant),
        ),
        a_job("big", status={**blocked, "queuedAt": at(-900), "expectedStart": at(600)}),
        a_job("next", status={**blocked, "queuedAt": at(-100)}),
    )


def cards(foreign: str = "plain") -> dict[str, str]:
    """One of every kind."""
    cluster = site(foreign)
    places = positions(lines(cluster.jobs, cluster.priorities))
    rows = job_rows(cluster.jobs, now=NOW, places=places)
    remarks = (foreign,)
    last = next(job for job in cluster.jobs if job.metadata.name == "next")
    status = a_running_status(
        reason=foreign[:64], message=foreign, lastIncident=an_incident(cause=foreign, pod=foreign)
    )
    regarding = {"kind": "TrainingJob", "name": "llama", "namespace": "team"}
    report = a_report(
        a_manifest(status=status), an_event(note=foreign, reason=foreign, regarding=regarding)
    )
    log = JobLog(lines=[LogLine(at="", index="0", text=foreign)], as_of=NOW)
    views = {
        "jobs": JobTable(items=rows, as_of=NOW, remarks=remarks),
        "queues": QueueTable(items=queue_rows(cluster), as_of=NOW, remarks=remarks),
        "why": WhyView(card=why_card(cluster, last), as_of=NOW, remarks=remarks),
        "report": ReportView(report=report),
        "log": log,
    }
    shown = {name: view._repr_html_() for name, view in views.items()}
    return {**shown, "job": job_card(rows[0], as_of=NOW, remarks=remarks)}


KINDS = ("jobs", "queues", "why", "report", "log", "job")


@pytest.mark.parametrize("kind", KINDS)
def test_a_card_runs_and_loads_nothing_and_is_readable_on_dark_and_light(kind: str) -> None:
    card = cards(EVIL)[kind]
    tags = Tags(card)
    assert tags.names <= {
        *("div", "span", "strong", "p", "ul", "li", "pre"),
        *("table", "thead", "tbody", "tr", "th", "td"),
    }
    assert tags.attributes <= {"style", "role", "aria-label"}
    assert tags.open == []
    assert "alert(1)" in tags.text
    for style in tags.styles:
        assert not re.search(r"url\(|expression|alert|#[0-9a-f]{3}|black|white(?!-)", style)
        # No colour of its own but translucent grounds: the notebook's theme shows through.
        assert set(re.findall(r"(?<![-\w])color:([^;]+)", style)) <= {"inherit"}


@settings(deadline=None, max_examples=30)
@given(st.one_of(st.just(EVIL), st.text(max_size=80), st.text(alphabet="<>&\"'/!-;:", max_size=40)))
def test_no_foreign_text_becomes_markup_or_style(foreign: str) -> None:
    assume(foreign not in set(Reason))  # constants of the code are tried, too
    plain, shown = cards(), cards(foreign)
    for kind in KINDS:
        calm, tags = Tags(plain[kind]), Tags(shown[kind])
        assert tags.names <= calm.names | {"p", "div"}
        assert tags.attributes <= calm.attributes
        assert tags.styles <= {*calm.styles, *Tags(plain["report"]).styles}
        assert tags.open == []


def test_the_cards_say_what_the_command_line_says() -> None:
    text = {kind: Tags(card).text for kind, card in cards().items()}
    assert "team/llama" in text["jobs"]
    assert not missing(text["jobs"], "1", "10 min")
    assert "8 of 8 GPUs of gpus" in text["queues"]
    assert "Position: 2 of 2" in text["why"]
    assert "team/llama" in text["why"]  # who holds the GPUs
    assert "16.4 s" in text["report"]
    assert "[0] plain" in text["log"]
    assert "Step: 420/1000" in text["job"]
    assert "width:42.0%" in cards()["job"]
    assert all("As of 20" in each for each in text.values())


def test_advice_is_on_the_card() -> None:
    cluster = a_cluster(a_queue("research"), a_job("big"))
    why = why_card(cluster, cluster.jobs[0])
    assert why.advice
    shown = Tags(WhyView(card=why, as_of=NOW)._repr_html_()).text
    assert f"What to do:{why.advice[0]}" in shown


def test_a_terminal_gets_the_tables_of_the_command_line() -> None:
    cluster = site("no room")
    rows = job_rows(cluster.jobs, now=NOW, places={"team/big": 1})
    shown = repr(JobTable(items=rows, as_of=NOW, remarks=("Only yours.",)))
    heads, *jobs, remark = shown.splitlines()
    assert heads.split()[:3] == ["JOB", "QUEUE", "PHASE"]
    assert [line.split()[0] for line in jobs] == ["team/llama", "team/big", "team/next"]
    assert remark == "Only yours."
    assert repr(QueueTable(items=queue_rows(cluster), as_of=NOW)).startswith("research: 8 of 8")
    why = why_card(cluster, cluster.jobs[1])
    assert not missing(repr(WhyView(card=why, as_of=NOW)), "team/big")
    assert not missing(job_text(rows[0], now=NOW), "team/llama", "step 420/1000", "1 h", "23 min")


def test_rows_are_plain_values_with_every_field_of_the_json() -> None:
    cluster = site()
    rows = JobTable(items=job_rows(cluster.jobs, now=NOW, places={}), as_of=NOW).rows()
    assert {tuple(row) for row in rows} == {tuple(rows[0])}  # a DataFrame's columns
    assert (rows[0]["name"], rows[0]["totalSteps"], rows[1]["totalSteps"]) == ("llama", 1000, None)
    (queue,) = QueueTable(items=queue_rows(cluster), as_of=NOW).rows()
    assert queue["quotas"] == [{"pool": "gpus", "nominalGpus": 8, "usedGpus": 8}]
    assert [job["name"] for job in queue["waiting"]] == ["big", "next"]
    report = ReportView(
        report=a_report(a_manifest(status=a_running_status(lastIncident=an_incident())))
    )
    assert report.rows()[0]["fault_class"]
    assert report.page().startswith("<!doctype html>")
    assert not missing(repr(report), "team/llama")


def test_a_view_is_a_sequence_of_its_rows() -> None:
    cluster = site()
    view = JobTable(items=job_rows(cluster.jobs, now=NOW, places={}), as_of=NOW)
    assert (len(view), view[0].name, next(iter(view)).name) == (3, "llama", "llama")


def test_nothing_is_shown_as_nothing() -> None:
    assert "no jobs" in JobTable(items=(), as_of=NOW)._repr_html_()
    assert "no queues" in QueueTable(items=(), as_of=NOW)._repr_html_()
    assert "no lines" in JobLog(lines=(), as_of=NOW)._repr_html_()
    assert repr(JobTable(items=(), as_of=NOW)) == "no jobs"


def test_a_long_table_is_cut_and_says_so() -> None:
    long = table(("n",), [(str(number),) for number in range(MOST_ROWS + 3)])
    assert long.count("<tr>") == MOST_ROWS + 1
    assert "3 rows more: see rows()" in long


def test_more_steps_than_there_are_fill_the_bar_and_no_more() -> None:
    assert "width:100.0%" in bar(1.7)
