"""What both renderers promise: all of the report, and nothing that foreign text could start."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_cli.report import html, text
from drumline_cli.report.model import JobReport
from drumline_cli.report.rendering import as_json
from drumline_contract import prompt_answers
from tests.unit.cli.manifests import a_manifest, a_report, a_running_status, an_event, an_incident

EVIL = "</style><script>alert(1)</script>\"'&<img src=x onerror=alert(1)>\x1b[31m\u202e"


class Elements(HTMLParser):
    """What a browser would see: elements with their attributes, and text."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.open: list[str] = []
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


SERIES = """step,generation,checkpoint,loss,gradientNorm,tokensPerSecond,stepSeconds,compute,data
3000,2,2000,4.5,0.9,800000,0.5,800,200
3804,2,3000,3.5,0.8,810000,0.6,700,300
4210,3,4000,2.5,0.7,790000,0.7,600,400"""
COMPUTE = """step,ranks,compute
3000,32,55555555555555555555555555555555
4210,32,555555555555555555555555555-5d54"""


def full_report(foreign: str) -> JobReport:
    status = a_running_status(
        reason=foreign[:64],
        message=foreign,
        loss=foreign[:32],
        phase="Recovering",
        lastIncident=an_incident(cause=foreign, pod=foreign[:60], node=foreign[:60]),
        earlierIncidents=[an_incident(cause=foreign, generation=2)],
        gpuSeconds={
            "until": "2026-11-21T06:55:12Z",
            "productive": 900,
            "starting": 75,
            "recovering": 60,
            "repeated": 15,
        },
        series=foreign or SERIES,
        computeByRank=foreign or COMPUTE,
        promptAnswers=prompt_answers.encode(4200, [(foreign or "The sky", foreign or "is blue")]),
    )
    manifest: Any = a_manifest(status=status)
    manifest["metadata"]["name"] = foreign or "llama"
    regarding = {"kind": "TrainingJob", "name": foreign or "llama", "namespace": "team"}
    return a_report(manifest, an_event(note=foreign, reason=foreign, regarding=regarding))


def test_the_text_shows_the_incident_and_its_stages_add_up() -> None:
    shown = text.render(
        a_report(a_manifest(status=a_running_status(lastIncident=an_incident()))), colours=False
    )
    stages = re.findall(r"^  ([A-Z][a-z ]+?) +([\d.]+) s", shown, re.MULTILINE)
    assert [name for name, _ in stages] == [
        *("Detect", "Decide", "Replace", "Rendezvous", "Restore", "First step")
    ]
    (total,) = re.findall(r"^  total +([\d.]+) s$", shown, re.MULTILINE)
    assert round(sum(float(seconds) for _, seconds in stages), 3) == float(total) == 16.41


def test_continued_prompts_are_shown_only_if_there_are_any() -> None:
    shown = text.render(full_report(""), colours=False)
    assert "\n  The sky\n  > is blue\n" in shown.partition("Continued prompts, step 4")[2]
    assert {"The sky", "is blue"} <= cells(html.render(full_report("")))
    for foreign in ("{}", "[[1]]", '[1,["a",2],"b"]', "[" * 7000, "[1" + '0" ' * 900):
        report = a_report(a_manifest(status=a_running_status(promptAnswers=foreign)))
        assert "Continued" not in text.render(report, colours=False)


def cells(document: str) -> set[str]:
    return set(re.findall(r"<td[^>]*>([^<]*)</td>", document))


def test_colours_change_nothing_but_colours() -> None:
    report = full_report("a cause")
    coloured = text.render(report, colours=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == text.render(report, colours=False)


@settings(deadline=None)
@given(st.text(max_size=300))
def test_no_foreign_text_steers_a_terminal(foreign: str) -> None:
    shown = text.render(full_report(foreign), colours=False)
    assert not re.search(
        r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", shown
    )
    assert max(map(len, shown.splitlines())) <= 320


@settings(deadline=None)
@given(st.one_of(st.just(EVIL), st.text(max_size=300), st.text(alphabet="<>&\"'/!-", max_size=60)))
def test_no_foreign_text_becomes_markup(foreign: str) -> None:
    plain = Elements(html.render(full_report("")))
    shown = Elements(html.render(full_report(foreign)))
    assert shown.names <= plain.names
    assert shown.attributes <= plain.attributes
    assert shown.open == []


def test_the_page_loads_and_runs_nothing() -> None:
    document = html.render(full_report(EVIL))
    elements = Elements(document)
    assert not elements.names & {"script", "link", "img", "iframe", "object", "base", "form", "a"}
    assert not {name for name in elements.attributes if name.startswith("on")}
    assert not elements.attributes & {"src", "href", "action"}
    assert "url(" not in document
    assert "default-src &#x27;none&#x27;" in document


def test_the_pictures_are_well_formed_and_say_in_words_what_they_show() -> None:
    document = html.render(full_report(""))
    pictures = re.findall(r'<svg[^>]*class="picture.*?</svg>', document, re.DOTALL)
    assert len(pictures) == 8
    for picture in pictures:
        root = ET.fromstring(picture)  # noqa: S314 - our own
        title, description = (root.find(name) for name in ("title", "desc"))
        assert title is not None
        assert description is not None
        assert title.text
        assert description.text
        assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"


def test_every_stage_of_the_picture_stands_inside_it() -> None:
    slow = an_incident(detectMilliseconds=0, decideMilliseconds=9_000_000, firstStepMilliseconds=1)
    report = a_report(a_manifest(status=a_running_status(lastIncident=slow)))
    document = html.render(report)
    (picture,) = re.findall(r'<svg[^>]*class="picture recovery.*?</svg>', document, re.DOTALL)
    for rect in ET.fromstring(picture).iter("rect"):  # noqa: S314 - our own
        assert float(rect.get("x", "nan")) >= 124
        assert float(rect.get("x", "nan")) + float(rect.get("width", "nan")) <= 960


@pytest.mark.parametrize("status", [{}, {"phase": "Pending"}, a_running_status()])
def test_a_job_with_little_to_tell_is_shown_too(status: dict[str, Any]) -> None:
    report = a_report(a_manifest(status=status))
    assert "What to do" in text.render(report, colours=False)
    assert Elements(html.render(report)).open == []


def test_the_fields_of_the_json_are_an_interface() -> None:
    document = json.loads(as_json(full_report("harmless")))
    assert list(document) == [
        "namespace",
        "name",
        "as_of",
        "mood",
        "phase",
        "reason",
        "sentence",
        "progress",
        "series",
        "compute_by_rank",
        "answers",
        "facts",
        "incidents",
        "shares",
        "losses",
        "budgets",
        "life",
        "next_steps",
        "events",
        "remarks",
        "goodput",
    ]
    assert list(document["incidents"][0]) == [
        "number",
        "fault_class",
        "cause",
        "culprit",
        "node",
        "found",
        "at",
        "stages",
        "over",
        "failed_step",
        "restored_step",
        "lost_steps",
        "tier",
    ]
