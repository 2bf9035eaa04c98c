"""What every panel and every alert asks, asked of a Prometheus that has seen Drumline at work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.monitoring.prometheus import Prometheus
from tools.monitoring import generate

INTERVAL: Final = "1m"
"""What Grafana puts for `$__rate_interval`."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """The time that is looked at, in seconds since the epoch."""

    start: float
    end: float
    step: float = 5.0


@dataclass(frozen=True, kw_only=True)
class Question:
    """One query, and where it stands: `fleet: GPUs held 0`, `alert DrumlineNoLeader`."""

    place: str
    expression: str


def panel_questions(*, namespace: str, job: str) -> Iterator[Question]:
    """The queries of all boards as Grafana sends them for this job."""
    chosen = {
        "__rate_interval": INTERVAL,
        "namespace": namespace,
        "training_job": job,
        "queue": ".*",
        "gpu_pool": ".*",
    }
    for board in generate.BOARDS:
        for panel, query in board.queries():
            number = panel.queries.index(query)
            yield Question(
                place=f"{board.name}: {panel.title} {number}",
                expression=re.sub(r"\$(\w+)", lambda name: chosen[name[1]], query.expression),
            )


def alert_questions(*, hurry: int = 1) -> Iterator[Question]:
    """The expressions of all alerts, their times divided by this."""
    for group in generate.GROUPS:
        for alert in group.alerts:
            yield Question(
                place=f"alert {alert.name}", expression=hurried(alert.expression, by=hurry)
            )


def unanswered(
    prometheus: Prometheus, questions: Iterator[Question], *, window: Window
) -> list[str]:
    """The places whose query has no data at any time."""
    return [
        question.place
        for question in questions
        if not prometheus.range(
            question.expression, start=window.start, end=window.end, step=window.step
        )
    ]


def metrics_without_samples(prometheus: Prometheus, names: set[str], *, window: Window) -> set[str]:
    """The metrics that have no sample at any time."""
    return {
        name
        for name in names
        if not prometheus.range(
            f"count({name})", start=window.start, end=window.end, step=window.step
        )
    }


def hurried(text: str, *, by: int) -> str:
    """Ranges, offsets and `for` of rules, divided: a day becomes 24 minutes for 60."""
    units = {"m": 60, "h": 3600, "d": 86_400}

    def shorter(match: re.Match[str]) -> str:
        seconds = int(match[2]) * units[match[3]] // by
        return f"{match[1]}{max(seconds, 1)}s"

    return re.sub(r"(\[|offset |for: )(\d+)([mhd])\b", shorter, text) if by > 1 else text
