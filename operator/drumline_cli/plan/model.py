"""Everything that a plan shows, whatever renders it."""

from __future__ import annotations

from dataclasses import dataclass

from drumline_cli.plan.rehearse import Rehearsal
from drumline_cli.plan.request import PlanRequest
from drumline_planner.ladder import Advice
from drumline_planner.memory import Bill
from drumline_planner.run_size import NoSize, PickedSize
from drumline_planner.search import Planned, RejectedLayout, SearchResult
from drumline_scheduler.model import Gang


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenLayout:
    """A TrainingJob as it is, on its own number of GPUs."""

    layout: str
    bill: Bill
    seconds: float
    """Of a step, as if it fitted."""
    change: str | None
    """The smallest with which it fits, as fields of the job with what it then needs; None: it fits,
    or none of those that were tried does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer to a request."""

    request: PlanRequest
    result: SearchResult
    advice: Advice
    compared: tuple[Planned | RejectedLayout, ...]
    written: WrittenLayout | None
    """The layout that a TrainingJob has now; None where its ranks choose one."""
    gang: Gang | None
    """A TrainingJob as the scheduler would see it."""
    curve: tuple[tuple[int, Planned | None], ...]
    """By number of GPUs, where a range was asked for."""
    front: tuple[Planned, ...]
    rehearsal: Rehearsal | None
    """By which all bills are corrected; None: there was none."""
    size: PickedSize | NoSize | None
    """By time, cost or deadline; None: it was not asked for."""
    price: float | None
    tokens: float | None
