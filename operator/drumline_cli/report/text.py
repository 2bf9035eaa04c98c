"""A report for a terminal: plain lines, with colours only on request."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from drumline_cli.formatting import amount, clock, count, duration, exact, many, percent
from drumline_cli.report.model import (
    EventRow,
    GpuSecondsShare,
    Health,
    IncidentReport,
    JobReport,
    RecoveryStage,
    RestartBudget,
)
from drumline_cli.report.rank_map import slowest
from drumline_cli.report.step_charts import FIGURES, known_figures, parts_in

WIDTH: Final = 100
_BAR_CHARACTERS: Final = 40
_STILL: Final = " so far"
_BOLD: Final = "1"
_COLOURS: Final = {
    Health.WELL: "32",
    Health.WAITS: "33",
    Health.RECOVERS: "34",
    Health.FAILED: "31",
}
_BLOCKS: Final = "▁▂▃▄▅▆▇█"


def render(report: JobReport, *, colours: bool) -> str:
    """Return the whole report, ending with a newline.

    Args:
        report: report to render.
        colours: whether the terminal supports colors.
    """
    ink = _Ink(colours=colours)
    parts = [
        _head(report, ink),
        _training(report, ink),
        _answers(report, ink),
        _last_incident(report, ink),
        _earlier_incidents(report, ink),
        _shares(report, ink),
        _budgets(report, ink),
        _next_steps(report, ink),
        _events(report, ink),
        list(_wrapped(report.remarks, indent="")),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


class _Ink:
    """Colours, or none."""

    def __init__(self, *, colours: bool) -> None:
        self._colours = colours

    # Escape sequences are added only for a terminal. A pipe gets plain text.
    def __call__(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._colours else text


def _head(report: JobReport, ink: _Ink) -> list[str]:
    reason = f" ({report.reason})" if report.reason else ""
    return [
        f"TrainingJob {report.namespace}/{report.name}, as of {clock(report.as_of)}",
        "",
        ink(f"{report.phase}{reason}", f"{_BOLD};{_COLOURS[report.health]}"),
        *_wrapped([report.summary], indent=""),
        "",
        *_table((fact.name, fact.value) for fact in report.facts),
    ]


def _training(report: JobReport, ink: _Ink) -> list[str]:
    """Return a line for each figure of which two values are known, and the parts of a step."""
    rows: list[tuple[str, str]] = []
    for title in FIGURES:
        values = [value for _, value in known_figures(report.series, title)]
        # Two values are the minimum for a curve.
        if len(values) > 1:
            line = sparkline(values)
            rows.append((title.lower(), f"{amount(values[0]):>8} {line} {amount(values[-1])}"))
    # Parts are known only if the program reports them.
    timed = [point for point in report.series if point.parts]
    if timed:
        said = (f"{part} {percent(timed[-1].parts[part] / 1000)}" for part in parts_in(timed[-1:]))
        rows.append(("of a step", ", ".join(said)))
    if said := slowest(report.compute_by_rank):
        rows.append(("slowest", said))
    if not rows:
        return []
    # The series may be empty while the times by rank are known.
    points = report.series or report.compute_by_rank
    steps = f"steps {count(points[0].step)} to {count(points[-1].step)}"
    return [ink(f"Training, {steps}", _BOLD), *_table(rows)]


def _answers(report: JobReport, ink: _Ink) -> list[str]:
    if not report.answers.pairs:
        return []
    said = [line for prompt, answer in report.answers.pairs for line in (prompt, f"> {answer}")]
    title = f"Continued prompts, step {count(report.answers.step)}"
    return [ink(title, _BOLD), *_wrapped(said, indent="  ")]


def _last_incident(report: JobReport, ink: _Ink) -> list[str]:
    if not report.incidents:
        return []
    last = report.incidents[0]
    return [
        ink(f"Last incident, {last.number}", _BOLD),
        *_table(
            row
            for row in (
                ("when", clock(last.at)),
                ("class", last.fault_class),
                ("cause", last.cause),
                ("root cause", last.root_cause),
                ("detected", last.detection),
                ("steps", steps_sentence(last)),
                ("state", last.tier),
            )
            # Older records lack some figures, so empty rows are dropped.
            if row[1]
        ),
        *_stages(last),
    ]


def _stages(incident: IncidentReport) -> Iterator[str]:
    for stage in incident.stages:
        yield f"  {stage.name:<12} {exact(stage.milliseconds):>12} {_bar_of(stage, incident)}"
    if incident.stages:
        label = "total" if incident.over else "so far"
        yield f"  {label:<12} {exact(incident.milliseconds):>12}"


def _bar_of(stage: RecoveryStage, incident: IncidentReport) -> str:
    scale = _BAR_CHARACTERS / incident.seconds if incident.seconds else 0.0
    begins = round((stage.begins_at - incident.at) * scale)
    # One character at least, or a short stage would be invisible.
    length = max(round(stage.seconds * scale), 1)
    # A bar must not start beyond the width, even after rounding.
    return " " * min(begins, _BAR_CHARACTERS - 1) + "█" * length + _STILL * stage.under_way


def steps_sentence(incident: IncidentReport) -> str:
    """Return the cost of the fault in steps, or empty text while unknown."""
    if incident.lost_steps is None:
        # The number is unknown until the ranks have restored their state.
        return ""
    lost = (
        "none was lost"
        if not incident.lost_steps
        else f"{many(incident.lost_steps, 'step')} done twice"
    )
    return (
        f"{count(incident.failed_step or 0)} were done, training continued from"
        f" {count(incident.restored_step or 0)}: {lost}"
    )


def _earlier_incidents(report: JobReport, ink: _Ink) -> list[str]:
    earlier = report.incidents[1:]
    if not earlier:
        return []
    lines = [ink("Earlier incidents", _BOLD)]
    for incident in earlier:
        took = duration(incident.seconds) if incident.over else "not over"
        steps = "" if incident.lost_steps is None else many(incident.lost_steps, "step")
        head = f"  {clock(incident.at)}  {incident.fault_class:<14} {took:>11}  {steps:>10}  "
        lines.append(_cut(head + incident.cause))
    # The cause is cut to one line, because -o json has the whole text.
    return lines


def _shares(report: JobReport, ink: _Ink) -> list[str]:
    if report.goodput is None:
        return []
    return [
        ink(f"GPU-seconds: {percent(report.goodput)} made lasting progress", _BOLD),
        *(_share(share) for share in report.shares),
    ]


def _share(share: GpuSecondsShare) -> str:
    bar = "█" * round(share.share * _BAR_CHARACTERS)
    figures = f"{count(share.gpu_seconds):>12}  {percent(share.share):>8}"
    return f"  {share.state:<14} {figures}  {bar}".rstrip()


def _budgets(report: JobReport, ink: _Ink) -> list[str]:
    if not report.budgets:
        return []
    rows = ((budget.fault_class, budget_sentence(budget)) for budget in report.budgets)
    return [ink("Restarts left", _BOLD), *_table(rows)]


def budget_sentence(budget: RestartBudget) -> str:
    """Return the remaining budget, and when more becomes available."""
    # Remaining restarts can be counted only if the job has a limit.
    if budget.left is None or budget.allowed is None:
        return f"no limit; {count(budget.total)} so far"
    back = ""
    if budget.next_back_at is not None:
        back = f"; the next one becomes available at {clock(budget.next_back_at)}"
    return f"{count(budget.left)} of {count(budget.allowed)}{back}"


def _next_steps(report: JobReport, ink: _Ink) -> list[str]:
    if not report.next_steps:
        return [ink("What to do", _BOLD), "  nothing"]
    return [ink("What to do", _BOLD), *_wrapped(report.next_steps, indent="  ")]


def _events(report: JobReport, ink: _Ink) -> list[str]:
    if not report.events:
        return []
    return [ink("Events", _BOLD), *map(_event, report.events)]


def _event(event: EventRow) -> str:
    when = "" if event.at is None else clock(event.at)
    times = f" (x{event.times})" if event.times > 1 else ""
    mark = "!" if event.warning else " "
    return _cut(f"{mark} {when:<20}  {event.reason}{times}: {event.note}")


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1].rstrip()}…"


def _table(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    # 17 characters belong to the indent and the name.
    for name, value in rows:
        lines = textwrap.wrap(value, WIDTH - 17, break_on_hyphens=False) or [""]
        yield f"  {name:<14} {lines[0]}".rstrip()
        yield from (f"  {'':<14} {line}" for line in lines[1:])


def _wrapped(sentences: Iterable[str], *, indent: str) -> Iterator[str]:
    for sentence in sentences:
        yield from textwrap.wrap(
            sentence,
            WIDTH,
            initial_indent=indent,
            subsequent_indent=indent,
            break_on_hyphens=False,
        )


def sparkline(values: Sequence[float]) -> str:
    """Return a character for each figure, from the lowest to the highest.

    Use the middle if all are equal.

    Example: 4.0, 3.0, 2.0 are `█▅▁`.
    """
    low, high = min(values), max(values)
    # All values are equal, so no range exists for the scale.
    if high <= low:
        return _BLOCKS[len(_BLOCKS) // 2] * len(values)
    steps = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round((value - low) / (high - low) * steps)] for value in values)
