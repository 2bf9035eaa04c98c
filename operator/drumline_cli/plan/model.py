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
    """Seconds of a step, as if the layout fit."""
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
    """Speed by number of GPUs, if a range was requested."""
    front: tuple[Planned, ...]
    rehearsal: Rehearsal | None
    """Rehearsal that corrects all memory estimates. None: no rehearsal."""
    size: PickedSize | NoSize | None
    """Choice by time, cost or deadline. None: not requested."""
    price: float | None
    tokens: float | None
