"""A story for a terminal: plain lines, with colours only where somebody asked for them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Final

from drumline.cli.formatting import clock, count, duration, exact, many, percent
from drumline.cli.report.model import (
    BudgetStory,
    EventLine,
    IncidentStory,
    Mood,
    Share,
    Stage,
    Story,
)

WIDTH: Final = 100
_BAR_CHARACTERS: Final = 40
_STILL: Final = " so far"
_BOLD: Final = "1"
_COLOURS: Final = {Mood.WELL: "32", Mood.WAITS: "33", Mood.RECOVERS: "34", Mood.FAILED: "31"}


def render(story: Story, *, colours: bool) -> str:
    """The whole report, ending with a newline.

    Args:
        story: What to tell.
        colours: Whether the reader's terminal understands them.
    """
    ink = _Ink(colours=colours)
    parts = [
        _head(story, ink),
        _last_incident(story, ink),
        _earlier_incidents(story, ink),
        _shares(story, ink),
        _budgets(story, ink),
        _next_steps(story, ink),
        _events(story, ink),
        list(_wrapped(story.remarks, indent="")),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


class _Ink:
    """Colours, or none."""

    def __init__(self, *, colours: bool) -> None:
        self._colours = colours

    def __call__(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._colours else text


def _head(story: Story, ink: _Ink) -> list[str]:
    reason = f" ({story.reason})" if story.reason else ""
    return [
        f"TrainingJob {story.namespace}/{story.name}, as of {clock(story.as_of)}",
        "",
        ink(f"{story.phase}{reason}", f"{_BOLD};{_COLOURS[story.mood]}"),
        *_wrapped([story.sentence], indent=""),
        "",
        *_table((fact.name, fact.value) for fact in story.facts),
    ]


def _last_incident(story: Story, ink: _Ink) -> list[str]:
    if not story.incidents:
        return []
    last = story.incidents[0]
    return [
        ink(f"Last incident, {last.number}", _BOLD),
        *_table(
            row
            for row in (
                ("when", clock(last.at)),
                ("class", last.fault_class),
                ("cause", last.cause),
                ("culprit", last.culprit),
                ("found", last.found),
                ("steps", steps_sentence(last)),
                ("state", last.tier),
            )
            if row[1]
        ),
        *_stages(last),
    ]


def _stages(incident: IncidentStory) -> Iterator[str]:
    for stage in incident.stages:
        yield f"  {stage.name:<12} {exact(stage.milliseconds):>12} {_bar_of(stage, incident)}"
    if incident.stages:
        told = "total" if incident.over else "so far"
        yield f"  {told:<12} {exact(incident.milliseconds):>12}"


def _bar_of(stage: Stage, incident: IncidentStory) -> str:
    scale = _BAR_CHARACTERS / incident.seconds if incident.seconds else 0.0
    begins = round((stage.begins_at - incident.at) * scale)
    length = max(round(stage.seconds * scale), 1)
    return " " * min(begins, _BAR_CHARACTERS - 1) + "█" * length + _STILL * stage.under_way


def steps_sentence(incident: IncidentStory) -> str:
    """What the fault cost in steps; empty while not known."""
    if incident.lost_steps is None:
        return ""
    lost = (
        "none was lost"
        if not incident.lost_steps
        else f"{many(incident.lost_steps, 'step')} done twice"
    )
    return (
        f"{count(incident.failed_step or 0)} were done, training went on from"
        f" {count(incident.restored_step or 0)}: {lost}"
    )


def _earlier_incidents(story: Story, ink: _Ink) -> list[str]:
    earlier = story.incidents[1:]
    if not earlier:
        return []
    lines = [ink("Earlier incidents", _BOLD)]
    for one in earlier:
        took = duration(one.seconds) if one.over else "not over"
        steps = "" if one.lost_steps is None else many(one.lost_steps, "step")
        head = f"  {clock(one.at)}  {one.fault_class:<14} {took:>11}  {steps:>10}  "
        lines.append(_cut(head + one.cause))
    return lines


def _shares(story: Story, ink: _Ink) -> list[str]:
    if story.goodput is None:
        return []
    return [
        ink(f"GPU-seconds: {percent(story.goodput)} made lasting progress", _BOLD),
        *(_share(share) for share in story.shares),
    ]


def _share(share: Share) -> str:
    bar = "█" * round(share.share * _BAR_CHARACTERS)
    figures = f"{count(share.gpu_seconds):>12}  {percent(share.share):>8}"
    return f"  {share.state:<14} {figures}  {bar}".rstrip()


def _budgets(story: Story, ink: _Ink) -> list[str]:
    if not story.budgets:
        return []
    rows = ((budget.fault_class, budget_sentence(budget)) for budget in story.budgets)
    return [ink("Restarts left", _BOLD), *_table(rows)]


def budget_sentence(budget: BudgetStory) -> str:
    """What is left of a budget, and when some of it comes back."""
    if budget.left is None or budget.allowed is None:
        return f"no limit; {count(budget.total)} so far"
    back = ""
    if budget.next_back_at is not None:
        back = f"; the next one comes back at {clock(budget.next_back_at)}"
    return f"{count(budget.left)} of {count(budget.allowed)}{back}"


def _next_steps(story: Story, ink: _Ink) -> list[str]:
    if not story.next_steps:
        return [ink("What to do", _BOLD), "  nothing"]
    return [ink("What to do", _BOLD), *_wrapped(story.next_steps, indent="  ")]


def _events(story: Story, ink: _Ink) -> list[str]:
    if not story.events:
        return []
    return [ink("Events", _BOLD), *map(_event, story.events)]


def _event(event: EventLine) -> str:
    when = "" if event.at is None else clock(event.at)
    times = f" (x{event.times})" if event.times > 1 else ""
    mark = "!" if event.warning else " "
    return _cut(f"{mark} {when:<20}  {event.reason}{times}: {event.note}")


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1].rstrip()}…"


def _table(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
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
