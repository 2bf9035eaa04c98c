"""A report as one HTML file: no scripts, nothing loaded from elsewhere, light and dark.

A content security policy in the file says so to the browser too: even if something foreign got
past the escaping, it could neither run nor fetch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Final

from drumline_cli.formatting import clock, count, duration, exact, many, percent
from drumline_cli.markup import Markup, element, joined
from drumline_cli.report import charts, rank_map, step_charts
from drumline_cli.report.model import IncidentReport, JobReport
from drumline_cli.report.sankey import sankey
from drumline_cli.report.text import budget_sentence, steps_sentence

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_FIGURE: Final = "figure"
_WORDS: Final = "words"


def render(report: JobReport) -> str:
    """Return the whole document."""
    # The style is inlined, so one file works as an attachment without a server.
    style = Markup(files("drumline_cli.report").joinpath("report.css").read_text(encoding="utf-8"))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        # The policy is a second barrier after escaping. It also forbids requests to other hosts.
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", f"{report.namespace}/{report.name}: {report.phase}"),
        element("style", style),
    )
    body = element("body", element("main", sections(report)))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def sections(report: JobReport, *, above: str = "", second: str = "") -> Markup:
    """Render all parts of the report. Their classes are those of report.css.

    Args:
        report: what is shown.
        above: markup over its header.
        second: markup below its header.
    """
    # The order follows a reader's questions: state, what to do, training, faults, costs.
    parts = (
        above,
        _header(report),
        second,
        _next_steps(report),
        _training(report),
        _answers(report),
        _timeline(report),
        _last_incident(report),
        _shares(report),
        _budgets(report),
        _incidents(report),
        _events(report),
        _footer(report),
    )
    # A section without data is left out, so a short job has a short page.
    return joined(*(part for part in parts if part))


def _header(report: JobReport) -> Markup:
    pill = element("span", report.phase, class_=f"pill {report.health}")
    reason = element("span", report.reason, class_="reason") if report.reason else ""
    return element(
        "header",
        element("p", f"TrainingJob in {report.namespace}", class_="over"),
        element("h1", report.name, " ", pill, reason),
        element("p", report.summary, class_="lead"),
        _progress(report),
        _facts(((fact.name, fact.value) for fact in report.facts), class_="tiles"),
    )


def _progress(report: JobReport) -> Markup:
    # Without a total number of steps, a bar would mislead.
    if report.progress is None:
        return Markup("")
    label = f"{percent(report.progress)} of its steps are done"
    bar = element("rect", width=report.progress * 100, height=1)
    return element(
        "svg",
        bar,
        # The viewBox is a percentage, and the style stretches it to the page.
        class_="progress",
        viewBox="0 0 100 1",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )


def _next_steps(report: JobReport) -> Markup:
    # An empty list would leave the reader in doubt, so the page states that nothing is needed.
    steps = report.next_steps or ("Nothing. You do not need to do anything.",)
    listed = element("ul", *(element("li", step) for step in steps))
    return _section("What to do", listed, class_="todo" if report.next_steps else "todo none")


def _training(report: JobReport) -> Markup:
    """Return the figures over the steps. Nothing while fewer than two points are known."""
    lines = [step_charts.line(report, title) for title in step_charts.FIGURES]
    stacked = step_charts.parts(report.series)
    drawn: list[Markup] = []
    for title, line in zip(step_charts.FIGURES, lines, strict=True):
        # The stacked chart contains the step time, so the single line would repeat it.
        if line and not (stacked and title == "Seconds a step"):
            drawn.append(element("h3", title))
            drawn.append(line)
            # Marks appear only in the chart of the loss.
            drawn.append(_line_legend(report) if title == "Loss" else Markup(""))
    if stacked:
        keys = (
            element("li", charts.key(f"part-{part}"), part)
            for part in step_charts.parts_in(report.series)
        )
        legend = element("ul", *keys, class_="legend")
        drawn += [element("h3", "Seconds per step, by part"), stacked, legend]
    drawn += _compute_by_rank(report)
    return _section("Training", *drawn) if drawn else Markup("")


def _answers(report: JobReport) -> Markup:
    if not report.answers.pairs:
        return Markup("")
    title = f"Continued prompts, step {count(report.answers.step)}"
    # Prompts are the user's and answers the model's. `element` escapes them.
    table = _table(title, {"prompt": _WORDS, "continuation": _WORDS}, report.answers.pairs)
    return _section(title, table)


def _compute_by_rank(report: JobReport) -> list[Markup]:
    drawn = rank_map.rank_map(report.compute_by_rank)
    if not drawn:
        return []
    bands = rank_map.bands_in(report.compute_by_rank)
    keys = (element("li", charts.key(band.slug), band.meaning) for band in bands)
    return [
        element("h3", "Compute time per step by rank, relative to the median"),
        element("p", f"Slowest: {rank_map.slowest(report.compute_by_rank)}."),
        drawn,
        element("ul", *keys, class_="legend"),
    ]


def _line_legend(report: JobReport) -> Markup:
    generations = {point.generation for point in report.series} - {None}
    # More than one generation means that the membership changed during the run.
    keys = [
        element("li", element("span", "\u25b2", class_="marker saved"), "checkpoint")
        if any(point.checkpoint for point in report.series)
        else "",
        element("li", element("span", "\u25bc", class_="marker"), "incident")
        if any(incident.failed_step is not None for incident in report.incidents)
        else "",
        element("li", "g: a new membership") if len(generations) > 1 else "",
    ]
    return element("ul", *filter(None, keys), class_="legend") if any(keys) else Markup("")


def _timeline(report: JobReport) -> Markup:
    if not report.timeline:
        return Markup("")
    # A dictionary removes duplicates and keeps the order of first appearance.
    states = dict.fromkeys(stretch.state for stretch in report.timeline)
    keys = [element("li", charts.key(state), state) for state in states]
    if report.incidents:
        keys.append(element("li", element("span", "\u25bc", class_="marker"), "incident"))
    return _section("Timeline", charts.timeline(report), element("ul", *keys, class_="legend"))


def _last_incident(report: JobReport) -> Markup:
    if not report.incidents:
        return Markup("")
    # Incidents are sorted, newest first.
    last = report.incidents[0]
    state = "recovered in" if last.over else "not finished"
    cause = element("p", element("strong", last.fault_class), f": {last.cause}", class_="cause")
    facts = _facts(
        row
        for row in (
            ("When", clock(last.at)),
            (state.capitalize(), exact(last.milliseconds)),
            ("Root cause", last.root_cause),
            ("Detected", last.detection),
            ("Steps", steps_sentence(last)),
            ("State", last.tier),
            ("Led to", f"membership {last.number} (generation.attempt)"),
        )
        # Rows without a value are dropped, because older records lack some figures.
        if row[1]
    )
    picture = charts.recovery(last) if last.stages else Markup("")
    meanings = element(
        "dl",
        *(
            joined(element("dt", charts.key(s.name), s.name), element("dd", s.meaning))
            for s in last.stages
        ),
        class_="meanings",
    )
    return _section("Last incident", cause, facts, picture, meanings if last.stages else "")


def _shares(report: JobReport) -> Markup:
    # A job that never held a GPU has no shares.
    if report.goodput is None:
        return Markup("")
    rows = [
        (
            joined(charts.key(share.state), share.state),
            count(share.gpu_seconds),
            percent(share.share),
        )
        for share in report.shares
    ]
    lead = element(
        "p",
        element("strong", percent(report.goodput), class_="big"),
        " of its GPU-seconds made lasting progress",
    )
    columns = {"state": None, "GPU-seconds": _FIGURE, "share": _FIGURE}
    table = _table("GPU-seconds by state", columns, rows)
    return _section("Use of the GPU-seconds", lead, sankey(report), table)


def _budgets(report: JobReport) -> Markup:
    if not report.budgets:
        return Markup("")
    rows = [
        (budget.fault_class, count(budget.used), budget_sentence(budget))
        for budget in report.budgets
    ]
    columns = {"class": None, "used": _FIGURE, "left": _WORDS}
    return _section("Restarts left", _table("Restarts left", columns, rows))


def _incidents(report: JobReport) -> Markup:
    # The last incident has a section of its own, so one incident needs no table.
    if len(report.incidents) < 2:
        return Markup("")
    columns = {
        "when": None,
        "number": None,
        "class": None,
        "cause": _WORDS,
        "root cause": _WORDS,
        "took": _FIGURE,
        "steps lost": _FIGURE,
    }
    rows = map(_incident_row, report.incidents)
    return _section("All incidents", _table("All incidents", columns, rows))


def _incident_row(incident: IncidentReport) -> tuple[str, ...]:
    return (
        clock(incident.at),
        incident.number,
        incident.fault_class,
        incident.cause,
        incident.root_cause,
        duration(incident.seconds) if incident.over else "not over",
        "" if incident.lost_steps is None else count(incident.lost_steps),
    )


def _events(report: JobReport) -> Markup:
    # Reasons and notes are text of other components. `element` escapes them.
    rows = [
        (
            "" if event.at is None else clock(event.at),
            element("span", event.reason, class_="warning" if event.warning else None),
            event.note,
            count(event.times),
        )
        for event in report.events
    ]
    if not rows:
        return Markup("")
    # Notes may be long, so their column wraps.
    columns = {"when": None, "reason": None, "what": _WORDS, "times": _FIGURE}
    return _section("Events", _table("Events", columns, rows))


def _footer(report: JobReport) -> Markup:
    remarks = (element("p", remark) for remark in report.remarks)
    written = f"Written by drumline report, as of {clock(report.as_of)}"
    if report.incidents:
        written += f"; {many(len(report.incidents), 'incident')} on record"
    return element("footer", *remarks, element("p", f"{written}. All times are UTC."))


def _section(title: str, *content: str, class_: str | None = None) -> Markup:
    return element("section", element("h2", title), *content, class_=class_)


def _facts(rows: Iterable[tuple[str, str]], *, class_: str = "facts") -> Markup:
    pairs = [element("div", element("dt", name), element("dd", value)) for name, value in rows]
    return element("dl", *pairs, class_=class_)


def _table(
    title: str, columns: Mapping[str, str | None], rows: Iterable[tuple[str, ...]]
) -> Markup:
    # Figures are aligned by their digits, and words may wrap.
    """Return a table with a kind per column: `figure` at the right, `words` that may wrap."""
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
    # A focusable group lets keyboard users scroll a wide table.
    return element("div", table, class_="wide", tabindex="0", role="group", aria_label=title)
