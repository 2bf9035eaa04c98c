"""Figures of a run over its steps, as a bounded number of points; pure.

A point is one logged step with its known figures. With too many points, the point with the closest
neighbours is dropped. So the points stay about evenly spread, and each is a measurement, not an
average. The text of a series is CSV. Columns without any figure are left out.

    step,generation,loss,tokensPerSecond
    10,1,4.299,3230
    20,1,3.261,1330

A text comes from a pod or a status, so it is tenant input. Points that are malformed or out of
order are dropped, and the amount of text that is read is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from drumline_contract.json_fields import MAX_FIGURE
from drumline_contract.step_parts import StepPart

MAX_POINTS: Final = 48
"""Maximum number of points of a whole run."""
RECENT_POINTS: Final = 16
"""Maximum number of points of one attempt in the agent's status. The operator reads it about once a
minute."""
MAX_SERIES_CHARS: Final = 4096
SAVING: Final = "saving"
"""Part of the time beside `StepPart`: training stood still for checkpoints and snapshots."""
PARTS: Final = (*map(str, StepPart), SAVING)
"""Parts of a step's time, in display order."""
_MAX_INTEGER: Final = 1 << 53


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """Figures known after `step` finished steps. None: unknown."""

    step: int
    """Finished optimizer steps."""
    generation: int | None = None
    """Membership that trained it."""
    checkpoint: int | None = None
    """Step of the newest checkpoint by then."""
    loss: float | None = None
    """Training loss."""
    gradient_norm: float | None = None
    """Before clipping."""
    tokens_per_second: float | None = None
    """Over all ranks."""
    step_seconds: float | None = None
    """Seconds per step. If `parts` are known, it includes saves in between."""
    parts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Thousandths of these seconds by `PARTS`, on the lowest rank."""


def shares_of(seconds: Mapping[str, float]) -> Mapping[str, int]:
    """Return thousandths of the whole by part, or nothing if nothing was measured."""
    whole = sum(seconds.values())
    # False for NaN too, which compares as unequal.
    if not 0 < whole < MAX_FIGURE:
        return {}
    # Thousandths keep the series short.
    shares = {part: round(1000 * value / whole) for part, value in seconds.items() if value >= 0}
    return {part: share for part, share in shares.items() if share}


class Stepped(Protocol):
    """A value with the step that it belongs to."""

    @property
    def step(self) -> int:
        """Finished optimizer steps."""
        ...


Point = TypeVar("Point", bound=Stepped)


def thinned(points: Sequence[Point], *, most: int) -> tuple[Point, ...]:
    """Reduce the points to at most `most` (2 or more). The first and the last stay.

    Example: steps 1, 2, 3, 9 and most=3: without 2 the gap is 2 steps, without 3 it is 7. 2 goes.
    """
    kept = list(points)
    while len(kept) > most:
        # The ends stay, so that the range of the series is known.
        inner = range(1, len(kept) - 1)
        del kept[min(inner, key=lambda at: kept[at + 1].step - kept[at - 1].step)]
    return tuple(kept)


def with_newer(known: Sequence[Point], recent: Sequence[Point], *, most: int) -> tuple[Point, ...]:
    """Append recent points to the known ones and thin the result to `most` points.

    After a return to a checkpoint, the repeated steps replace the earlier ones.

    Args:
        known: points at rising steps.
        recent: points to append.
        most: largest number of points.
    """
    if not recent:
        return tuple(known)
    # A lower last step means a return to a checkpoint.
    if known and recent[-1].step < known[-1].step:
        known = [point for point in known if point.step < recent[0].step]
    newest = known[-1].step if known else -1
    return thinned([*known, *(each for each in recent if each.step > newest)], most=most)


def encode(points: Sequence[StepPoint]) -> str:
    """Encode a series in at most MAX_SERIES_CHARS, dropping points if needed."""
    text = _csv(points)
    # Dropping one point at a time keeps as many as fit.
    while len(text) > MAX_SERIES_CHARS:
        points = thinned(points, most=len(points) - 1)
        text = _csv(points)
    return text


def decode(text: str, *, most: int = MAX_POINTS) -> tuple[StepPoint, ...]:
    """Decode the well-formed points of a text, as long as their steps rise."""
    # Both the characters and the lines are bounded, since a pod wrote the text.
    heads, *rows = text[:MAX_SERIES_CHARS].split("\n", most + 1)[: most + 1]
    names = heads.split(",")
    points: list[StepPoint] = []
    for row in rows:
        cells = row.split(",")
        point = _point(dict(zip(names, cells, strict=False)))
        rises = point is not None and (not points or point.step > points[-1].step)
        if point is not None and rises and len(cells) == len(names):
            points.append(point)
    return tuple(points)


def integer_of(cell: str) -> int | None:
    """Parse a cell as a whole number. None for any other text."""
    # isdecimal accepts digits of other scripts, hence isascii. 16 digits exceed 2^53.
    if not (cell.isascii() and cell.isdecimal() and len(cell) <= 16):
        return None
    value = int(cell)
    return value if value <= _MAX_INTEGER else None


_COLUMNS: Final[Mapping[str, Callable[[StepPoint], float | None]]] = {
    "step": lambda point: point.step,
    "generation": lambda point: point.generation,
    "checkpoint": lambda point: point.checkpoint,
    "loss": lambda point: point.loss,
    "gradientNorm": lambda point: point.gradient_norm,
    "tokensPerSecond": lambda point: point.tokens_per_second,
    "stepSeconds": lambda point: point.step_seconds,
}


def _csv(points: Iterable[StepPoint]) -> str:
    columns: dict[str, list[str]] = {}
    points = list(points)
    for name, value_of in _COLUMNS.items():
        columns[name] = [_cell(value_of(point)) for point in points]
    for part in PARTS:
        columns[part] = [_cell(point.parts.get(part)) for point in points]
    # A column without figures would only cost characters.
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    rows = zip(*shown.values(), strict=True)
    return "\n".join([",".join(shown), *map(",".join, rows)]) if shown else ""


def _cell(value: float | None) -> str:
    if isinstance(value, int):
        return str(value)
    if value is None or not -MAX_FIGURE <= value <= MAX_FIGURE:  # False for a NaN too
        return ""
    # Four digits are the accuracy of the charts.
    return f"{value:.4g}"


def _point(cells: Mapping[str, str]) -> StepPoint | None:
    step = integer_of(cells.get("step", ""))
    if step is None:
        return None
    parts = {part: integer_of(cells.get(part, "")) for part in PARTS}
    return StepPoint(
        step=step,
        generation=integer_of(cells.get("generation", "")),
        checkpoint=integer_of(cells.get("checkpoint", "")),
        loss=_number(cells.get("loss", "")),
        gradient_norm=_number(cells.get("gradientNorm", "")),
        tokens_per_second=_number(cells.get("tokensPerSecond", "")),
        step_seconds=_number(cells.get("stepSeconds", "")),
        parts={part: min(share, 1000) for part, share in parts.items() if share},
    )


def _number(cell: str) -> float | None:
    try:
        # The slice bounds the work of the parser.
        value = float(cell[:32])
    except ValueError:
        return None
    return value if -MAX_FIGURE <= value <= MAX_FIGURE else None
