"""A story as one HTML file: no scripts, nothing loaded from elsewhere, light and dark.

A content security policy in the file says so to the browser too: even if something foreign got
past the escaping, it could neither run nor fetch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Final

from drumline.cli.formatting import clock, count, duration, exact, many, percent
from drumline.cli.markup import Markup, element, joined
from drumline.cli.report import charts as drawing
from drumline.cli.report.model import IncidentStory, Story
from drumline.cli.report.text import budget_sentence, steps_sentence

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_FIGURE: Final = "figure"
_WORDS: Final = "words"


def render(story: Story) -> str:
    """The whole document."""
    style = Markup(files("drumline.cli.report").joinpath("report.css").read_text(encoding="utf-8"))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", f"{story.namespace}/{story.name}: {story.phase}"),
        element("style", style),
    )
    sections = (
        _header(story),
        _next_steps(story),
        _life(story),
        _last_incident(story),
        _shares(story),
        _budgets(story),
        _incidents(story),
        _events(story),
        _footer(story),
    )
    body = element("body", element("main", *(part for part in sections if part)))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _header(story: Story) -> Markup:
    pill = element("span", story.phase, class_=f"pill {story.mood}")
    reason = element("span", story.reason, class_="reason") if story.reason else ""
    return element(
        "header",
        element("p", f"TrainingJob in {story.namespace}", class_="over"),
        element("h1", story.name, " ", pill, reason),
        element("p", story.sentence, class_="lead"),
        _progress(story),
        _facts(((fact.name, fact.value) for fact in story.facts), class_="tiles"),
    )


def _progress(story: Story) -> Markup:
    if story.progress is None:
        return Markup("")
    told = f"{percent(story.progress)} of its steps are done"
    bar = element("span", style=f"width:{story.progress * 100:.2f}%")
    return element("div", bar, class_="progress", role="img", aria_label=told)


def _next_steps(story: Story) -> Markup:
    steps = story.next_steps or ("Nothing: there is nothing for you to do.",)
    listed = element("ul", *(element("li", step) for step in steps))
    return _section("What to do", listed, class_="todo" if story.next_steps else "todo none")


def _life(story: Story) -> Markup:
    if not story.life:
        return Markup("")
    states = dict.fromkeys(stretch.state for stretch in story.life)
    keys = [element("li", drawing.key(state), state) for state in states]
    if story.incidents:
        keys.append(element("li", element("span", "\u25bc", class_="marker"), "incident"))
    return _section("Its life so far", drawing.life(story), element("ul", *keys, class_="legend"))


def _last_incident(story: Story) -> Markup:
    if not story.incidents:
        return Markup("")
    last = story.incidents[0]
    state = "recovered in" if last.over else "not over, so far"
    told = element("p", element("strong", last.fault_class), f": {last.cause}", class_="cause")
    facts = _facts(
        row
        for row in (
            ("When", clock(last.at)),
            (state.capitalize(), exact(last.milliseconds)),
            ("Culprit", last.culprit),
            ("Found", last.found),
            ("Steps", steps_sentence(last)),
            ("State", last.tier),
            ("Led to", f"membership {last.number} (generation.attempt)"),
        )
        if row[1]
    )
    picture = drawing.recovery(last) if last.stages else Markup("")
    meanings = element(
        "dl",
        *(
            joined(element("dt", drawing.key(s.name), s.name), element("dd", s.meaning))
            for s in last.stages
        ),
        class_="meanings",
    )
    return _section("Last incident", told, facts, picture, meanings if last.stages else "")


def _shares(story: Story) -> Markup:
    if story.goodput is None:
        return Markup("")
    rows = [
        (
            joined(drawing.key(share.state), share.state),
            count(share.gpu_seconds),
            percent(share.share),
        )
        for share in story.shares
    ]
    lead = element(
        "p",
        element("strong", percent(story.goodput), class_="big"),
        " of its GPU-seconds made lasting progress",
    )
    columns = {"state": None, "GPU-seconds": _FIGURE, "share": _FIGURE}
    table = _table("GPU-seconds by state", columns, rows)
    return _section("Where the GPU-seconds went", lead, drawing.shares(story), table)


def _budgets(story: Story) -> Markup:
    if not story.budgets:
        return Markup("")
    rows = [
        (budget.fault_class, count(budget.used), budget_sentence(budget))
        for budget in story.budgets
    ]
    columns = {"class": None, "used": _FIGURE, "left": _WORDS}
    return _section("Restarts left", _table("Restarts left", columns, rows))


def _incidents(story: Story) -> Markup:
    if len(story.incidents) < 2:
        return Markup("")
    columns = {
        "when": None,
        "number": None,
        "class": None,
        "cause": _WORDS,
        "culprit": _WORDS,
        "took": _FIGURE,
        "steps lost": _FIGURE,
    }
    rows = map(_incident_row, story.incidents)
    return _section("All incidents", _table("All incidents", columns, rows))


def _incident_row(incident: IncidentStory) -> tuple[str, ...]:
    return (
        clock(incident.at),
        incident.number,
        incident.fault_class,
        incident.cause,
        incident.culprit,
        duration(incident.seconds) if incident.over else "not over",
        "" if incident.lost_steps is None else count(incident.lost_steps),
    )


def _events(story: Story) -> Markup:
    rows = [
        (
            "" if event.at is None else clock(event.at),
            element("span", event.reason, class_="warning" if event.warning else None),
            event.note,
            count(event.times),
        )
        for event in story.events
    ]
    if not rows:
        return Markup("")
    columns = {"when": None, "reason": None, "what": _WORDS, "times": _FIGURE}
    return _section("Events", _table("Events", columns, rows))


def _footer(story: Story) -> Markup:
    remarks = (element("p", remark) for remark in story.remarks)
    told = f"Told by drumline report, as of {clock(story.as_of)}"
    if story.incidents:
        told += f"; {many(len(story.incidents), 'incident')} on record"
    return element("footer", *remarks, element("p", f"{told}. All times are UTC."))


def _section(title: str, *content: str, class_: str | None = None) -> Markup:
    return element("section", element("h2", title), *content, class_=class_)


def _facts(rows: Iterable[tuple[str, str]], *, class_: str = "facts") -> Markup:
    pairs = [element("div", element("dt", name), element("dd", value)) for name, value in rows]
    return element("dl", *pairs, class_=class_)


def _table(
    title: str, columns: Mapping[str, str | None], rows: Iterable[tuple[str, ...]]
) -> Markup:
    """A table whose columns have a kind each: `figure` at the right, `words` that may wrap."""
    head = (element("th", name, scope="col", class_=kind) for name, kind in columns.items())
    body = (
        element(
            "tr",
            *(
                element("td", cell, class_=kind)
                for cell, kind in zip(row, columns.values(), strict=True)
            ),
        )
        for row in rows
    )
    table = element(
        "table", element("thead", element("tr", *head)), element("tbody", *body), aria_label=title
    )
    return element("div", table, class_="wide", tabindex="0", role="group", aria_label=title)
