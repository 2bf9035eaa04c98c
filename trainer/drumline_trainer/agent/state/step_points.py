"""From a heartbeat to a point of the run's series; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from drumline_trainer.contract import StepPoint
from drumline_trainer.contract.step_series import SAVING, shares_of
from drumline_trainer.metrics.part_comparison import step_part_of
from drumline_trainer.rank_protocol.heartbeat import Heartbeat


def step_point(heartbeat: Heartbeat, *, usual_seconds: float | None) -> StepPoint:
    """What a rank says of the step that it finished last.

    Args:
        heartbeat: of the lowest rank of the pod.
        usual_seconds: of a step as the agent counted it, where the rank does not say.
    """
    seconds = seconds_by_part(heartbeat.step_parts or {})
    shares = shares_of(seconds)
    measured = heartbeat.step_seconds if heartbeat.step_seconds is not None else usual_seconds
    return StepPoint(
        step=heartbeat.step,
        generation=heartbeat.generation,
        checkpoint=heartbeat.checkpoint_step,
        loss=heartbeat.loss,
        gradient_norm=heartbeat.gradient_norm,
        tokens_per_second=heartbeat.tokens_per_second,
        step_seconds=sum(seconds.values()) if shares else measured,
        parts=shares,
    )


def with_news(known: StepPoint, newest: StepPoint) -> StepPoint:
    """A point with what is said of the same step later, as where a program prints its loss last."""
    older = {each.name: getattr(known, each.name) for each in fields(StepPoint)}
    unknown = {name: value for name, value in older.items() if getattr(newest, name) in (None, {})}
    return replace(newest, **unknown)


def seconds_by_part(timed: Mapping[str, float]) -> dict[str, float]:
    """The parts of the step timer as those of a series: forward and backward are `compute`."""
    seconds: dict[str, float] = {}
    for name, value in timed.items():
        part = str(step_part_of(name) or SAVING)
        seconds[part] = seconds.get(part, 0.0) + value
    return seconds
