"""The documents: what they show, and that nothing foreign in them is more than text."""

from __future__ import annotations

import json
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from drumline.overview.rows import NodeRow
from drumline_cli.decide.job_decisions import JobDecision, JobVerdict
from drumline_cli.decide.what_if import ChangedDecision, OtherSize, WhatIfAnswer
from drumline_cli.jobs.clone import cloned
from drumline_cli.jobs.named_job import NamedJob
from drumline_cli.report.job_input import job_input
from drumline_console.ui import action_pages, pages, what_if_page
from drumline_console.ui.rack_map import COLOURS, MOST_NODES, colours_of, rack_map
from drumline_contract import prompt_answers
from tests.unit.cli.manifests import an_event, an_incident
from tests.unit.overview.objects import (
    NOW,
    a_cluster,
    a_job,
    a_node,
    a_pool,
    a_priority_class,
    a_queue,
    at,
    running,
)

UI = Path(pages.__file__).parent
HOSTILE = (
    "<script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</main></body><script src=//evil></script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "<a href=javascript:alert(1)>x</a>",
    "javascript:alert(1)",
    '" onmouseover="alert(1)',
    "' onfocus='alert(1)' autofocus='",
    '"><script>alert(1)</script>',
    "'><img src=x onerror=alert(1)>",
    "` onclick=alert(1) `",
    "<style>*{display:none}</style>",
    '" style="position:fixed;inset:0',
    "<link rel=stylesheet href=//evil>",
    "<meta http-equiv=refresh content='0;url=//evil'>",
    "<base href=//evil/>",
    "<form action=//evil><button>x",
    "<object data=//evil>",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
    "<!--<img src=--><img src=x onerror=alert(1)>-->",
    "]]><script>alert(1)</script>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#x3c;script&#x3e;alert(1)",
    "\u003cscript\u003ealert(1)",
    "{{constructor.constructor('alert(1)')()}}",
    "../../../asset/live.js?x=<b>",
    "\u202e\u2066<b>txet\u0000\u001b[2J</b>\x07",
)
ELEMENTS = frozenset(
    (
        *("html", "head", "meta", "title", "link", "script", "body", "main", "header", "footer"),
        *("h1", "h2", "h3", "h4", "small", "p", "section", "nav", "div", "ul", "li", "span", "a"),
        *("strong", "svg", "rect", "line", "text", "path", "g", "desc", "circle", "table"),
        *("thead", "tbody", "tr", "th", "td", "dl", "dt", "dd", "form", "button", "input"),
        *("label", "select", "option", "textarea", "pre", "output"),
    )
)
LINKS = ("#", "job/", "history", "what-if", "./", "../", "asset/", "runs/", "waits/")
ACTIONS = frozenset(
    (
        "./",
        *("runs/suspend", "runs/resume", "waits/suspend", "waits/resume"),
        *("delete", "priority", "clone", "what-if"),
    )
)


class Audit(HTMLParser):
    """Every element and attribute of a page, and its text."""

    def __init__(self, document: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.scripts = 0
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.scripts += tag == "script"
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def hostile_cluster(text: str) -> list[dict[str, Any]]:
    """Every text that a tenant, a node or an administrator may write is this one."""
    status = {"reason": text, "message": text, "loss": text, "ready": text}
    places = {"gpuPool": text, "prefix": text, "nodes": [""]}
    incident = an_incident(cause=text, pod=text, node=text, faultAt=at(-100))
    node = a_node("plain", conditions=[{"type": "Ready", "status": "False", "message": text}])
    node["metadata"] |= {"name": text, "labels": {"pool": "gpus", "rack": text}}
    queue = a_queue("research")
    queue["metadata"]["name"] = text
    pool = a_pool()
    pool["metadata"]["name"] = text
    spec = {"queue": text, "user": text}
    return [
        queue,
        pool,
        node,
        a_job("runs", spec=spec, status=running(assignment=places, lastIncident=incident)),
        a_job("waits", spec=spec, status={**status, "phase": "Pending", "nominated": places}),
        a_job("ended", spec=spec, status={**status, "phase": "Failed", "finishedAt": at(-9)}),
        a_job(text, namespace=text, spec=spec, status={**status, "phase": "Pending"}),
    ]


def hostile_status(name: str, text: str) -> dict[str, Any]:
    """A job whose spec the API server has checked, and whose status says this everywhere."""
    short = text[:32]
    incident = an_incident(cause=text, pod=text, node=text, faultAt=at(-100))
    status = {
        "phase": "Running",
        "reason": text[:64],
        "message": text,
        "loss": short,
        "layout": text,
        "promptAnswers": prompt_answers.encode(3, [(text, text)]),
        "incident": text,
        "lastIncident": incident,
        "ready": short,
        "assignment": {"gpuPool": text, "nodes": [text]},
    }
    return a_job(name, status=status)


def cloned_of(job: dict[str, Any], text: str) -> dict[str, Any]:
    job["spec"] |= {"queue": text, "user": text}
    return cloned(job, name="copy", changes=[f"user={json.dumps(text)}"], command=())


def audited(document: str) -> Audit:
    """The page, once it is known that nothing in it runs or leads away."""
    audit = Audit(document)
    assert audit.elements <= ELEMENTS
    assert audit.scripts <= 1
    for tag, name, value in audit.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name not in {"style", "srcdoc", "srcset", "formaction", "http-equiv"}, (tag, name)
        if name in {"href", "src"}:
            assert value.startswith(LINKS), (tag, name, value)
        if name == "action":
            assert value in ACTIONS
    return audit


@pytest.mark.parametrize("text", HOSTILE)
def test_foreign_text_is_text(text: str) -> None:
    objects = hostile_cluster(text)
    cluster = a_cluster(*objects)
    shown = audited(pages.overview(cluster)).text
    assert " ".join(text.replace("\x00", " ").split())[:6].strip() in shown or not text[0].isascii()
    for name in ("runs", "waits"):
        event = an_event(note=text, reason=text)
        event["regarding"] |= {"name": name, "uid": ""}
        read = job_input(hostile_status(name, text), events=[event], as_of=NOW)
        assert "Continued prompts, step 3" in audited(pages.job(read, cluster)).text
        audited(action_pages.delete(read))
        audited(action_pages.priority(read, a_cluster(a_priority_class(text, 1))))
        job = NamedJob(namespace="team", name=name)
        audited(
            action_pages.clone(job, cloned_of(hostile_status(name, text), text), changes=[text])
        )
    audited(pages.refused(text, title="Refused", up="../"))
    question = OtherSize(job=text, nodes=2, priority=text)
    row = JobDecision(
        job=f"team/{text}",
        uid=text,
        queue=text,
        pods=1,
        gpus=8,
        verdict=JobVerdict.WAITS,
        reason=text,
        message=text,
        remedy=text,
        pool=text,
        nodes=(text,),
    )
    changed = ChangedDecision(job=row.job, now=None, then=row, asked=False)
    answer = WhatIfAnswer(changed=(changed,), unchanged=0, as_of=NOW, remarks=(text,))
    audited(what_if_page.what_if(cluster, question, answer))


def test_thirty_cases_are_thirty() -> None:
    assert len(set(HOSTILE)) == 30


def test_the_script_has_no_way_to_run_text() -> None:
    for file in UI.glob("*.js"):
        script = file.read_text()
        for sink in (
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval",
            "Function(",
        ):
            assert sink not in script
        assert "//" not in script.replace("// ", "")
    styles = (UI / "ui.css").read_text()
    assert "url(" not in styles
    assert "@import" not in styles


def test_the_overview_says_who_holds_who_waits_and_what_ended() -> None:
    cluster = a_cluster(
        a_queue("research", gpus=4),
        a_pool(),
        a_node("node-1"),
        a_node("node-2"),
        a_job("runs", status=running(step=4, totalSteps=9, loss="2.5", expectedEnd=at(600))),
        a_job(
            "waits",
            status={
                "phase": "Pending",
                "reason": "QuotaExhausted",
                "message": "needs 8 GPUs",
                "queuedAt": at(-60),
                "expectedStart": at(120),
                "expectedStartBy": at(600),
                "nominated": {"gpuPool": "gpus", "prefix": "node-", "nodes": ["2"]},
            },
        ),
        a_job("ended", status={"phase": "Failed", "reason": "NoProgress", "finishedAt": at(-90)}),
    )
    document = pages.overview(cluster)
    text = Audit(document).text
    assert "8 GPUs held by 1 job" in text
    assert "gpus: 8 of 4 GPUs held" in text
    assert "in 2 min to 10 min" in text
    assert "NoProgress" in text
    assert 'title="node-2: 0 of 8 GPUs held; promised to team/waits"' in document
    assert document.count('href="job/team/runs"') == 2


def test_a_budget_stands_below_the_quotas() -> None:
    spent = {"spentGpuHours": 90, "until": at(-60)}
    limited = a_queue("q", budget={"gpuHours": 100, "windowDays": 30}, status={"budget": spent})
    document = pages.overview(a_cluster(limited))
    assert "<li>90 of 100 GPU-hours of 30 days spent</li>" in str(document)
    assert "picture budget-q" in str(document)


def test_a_budget_that_will_be_spent_says_when_and_draws_it() -> None:
    days = [{"day": "2027-01-14", "gpuSeconds": 60 * 3600}]
    status = {
        "budget": {
            "spentGpuHours": 60,
            "until": at(0),
            "days": days,
            "gpuSecondsPerHour": 2 * 3600,
        },
    }
    limited = a_queue("q", budget={"gpuHours": 100, "windowDays": 3}, status=status)
    document = str(pages.overview(a_cluster(limited)))
    assert "60 of 100 GPU-hours of 3 days spent" in document
    assert "2027-01-16" in document
    assert "40 of 100 GPU-hours remain" in document


def test_the_page_of_a_waiting_job_has_its_line_and_a_button() -> None:
    waits = a_job("waits", status={"phase": "Pending", "reason": "QuotaExhausted"})
    ahead = a_job("ahead", created=-900, status={"phase": "Pending", "reason": "QuotaExhausted"})
    cluster = a_cluster(a_queue("research"), ahead, waits, a_job("runs", status=running()))
    document = pages.job(job_input(waits, events=[], as_of=NOW), cluster)
    text = Audit(document).text
    assert "2 of 2 in queue research" in text
    assert "Suspend: " in text
    assert 'href="../../job/team/ahead"' in document
    assert 'href="../../job/team/runs"' in document


def test_who_has_ended_is_only_copied_and_deleted_and_who_is_suspended_resumes() -> None:
    ended = a_job("ended", status={"phase": "Failed", "finishedAt": at(-9)})
    document = pages.job(job_input(ended, events=[], as_of=NOW), a_cluster(ended))
    assert "<form" not in document
    assert "ended/priority" not in document
    assert 'href="ended/clone"' in document
    assert 'href="ended/delete"' in document
    resting = a_job("resting", spec={"suspend": True}, status={"phase": "Suspended"})
    document = pages.job(job_input(resting, events=[], as_of=NOW), a_cluster(resting))
    assert 'action="resting/resume"' in document


def test_a_page_of_five_thousand_jobs_is_small() -> None:
    blocked = {"phase": "Pending", "reason": "QuotaExhausted", "message": "needs 8 GPUs" * 9}
    jobs = [a_job(f"waits-{number}", status=blocked) for number in range(4000)]
    jobs += [a_job(f"runs-{number}", status=running()) for number in range(1000)]
    nodes = [a_node(f"node-{number}", rack=f"r{number // 32}") for number in range(1000)]
    document = pages.overview(a_cluster(a_queue("research"), a_pool(), *nodes, *jobs))
    assert len(document.encode()) < 300_000
    assert "3975 jobs more" in document.replace("\N{NO-BREAK SPACE}", "")


def test_of_a_larger_cluster_the_first_nodes_are_drawn() -> None:
    row = NodeRow(node="n", pool="p", domains=(), gpus=8, held_gpus=0, state="Ready")
    drawn = rack_map([row] * (MOST_NODES + 5), {})
    assert drawn.count("<li>") == MOST_NODES
    assert "5 nodes more" in drawn


def test_few_jobs_have_a_colour_each_and_keep_it_while_younger_ones_come() -> None:
    jobs = [f"team/job-{number}" for number in range(COLOURS * 5)]
    few = colours_of(jobs[:COLOURS])
    assert set(few.values()) == set(range(1, COLOURS + 1))
    many = colours_of(jobs)
    assert {job: many[job] for job in few} == few
    assert set(Counter(many.values()).values()) == {5}


def many_jobs() -> list[dict[str, Any]]:
    waits = {"phase": "Pending", "reason": "QuotaExhausted"}
    return [
        a_queue("research"),
        a_pool(),
        a_node("node-1"),
        a_job("llama-1", status=running(), spec={"user": "ada"}),
        a_job("llama-2", status=waits),
        a_job("bert", status=waits, spec={"user": "bob"}),
    ]


def test_the_page_links_to_its_sections_and_has_a_filter() -> None:
    document = pages.overview(a_cluster(*many_jobs()))
    seen = Audit(document)
    links = [value for tag, name, value in seen.attributes if (tag, name) == ("a", "href")]
    anchors = [link.removeprefix("#") for link in links if link.startswith("#")]
    ids = [value for tag, name, value in seen.attributes if (tag, name) == ("section", "id")]
    assert anchors == ids
    assert {"nodes", "queues", "running"} <= set(ids)
    assert ("input", "name", "q") in seen.attributes


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("", {"llama-1", "llama-2", "bert"}),
        ("LLAMA", {"llama-1", "llama-2"}),
        ("llama quota", {"llama-2"}),
        ("bob", {"bert"}),
        ("nothing like it", set()),
    ],
)
def test_a_filter_keeps_the_jobs_with_all_of_its_words(words: str, names: set[str]) -> None:
    objects = [each for each in many_jobs() if each["kind"] != "Node"]
    seen = Audit(pages.overview(a_cluster(*objects), words=words))
    links = {value for tag, name, value in seen.attributes if (tag, name) == ("a", "href")}
    shown = {name for name in ("llama-1", "llama-2", "bert") if f"job/team/{name}" in links}
    assert shown == names
