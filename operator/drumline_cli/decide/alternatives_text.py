"""Format the alternatives of pending jobs as lines below the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

from drumline_api.money import millionths, money_text
from drumline_cli.decide.alternatives import Alternative, AlternativeKind
from drumline_cli.decide.job_decisions import JobDecision
from drumline_cli.formatting import duration, many
from drumline_contract import plain


def alternatives_text(decisions: Iterable[JobDecision], *, now: float) -> str:
    """Return a line for each alternative, or empty if no job has any."""
    return "".join(f"{line}\n" for line in _lines(decisions, now=now))


def _lines(decisions: Iterable[JobDecision], *, now: float) -> Iterator[str]:
    for decision in decisions:
        if decision.alternatives:
            yield f"{plain(decision.job)} could"
        for alternative in decision.alternatives:
            yield f"  {plain(_sentence(alternative, now=now))}"


def _sentence(alternative: Alternative, *, now: float) -> str:
    """`buy 2 nodes of h100-spot: 14.40 an hour`."""
    hour = f"{money(alternative.cost_per_hour)} an hour" if alternative.cost_per_hour else ""
    unit = "GPU" if alternative.parts_per_gpu == 1 else "part"
    runs = f"{many(alternative.gpus, unit)} of {alternative.pool}"
    price = f"{runs}, {hour}" if hour else runs
    match alternative.kind:
        case AlternativeKind.WAIT:
            at = alternative.starts_at
            start = "" if at is None else f"starts in {duration(at - now)}, "
            return f"wait: {start}then {price}"
        case AlternativeKind.SHRINK:
            return f"request {many(alternative.pods, 'pod')}: starts now, {price}"
        case AlternativeKind.PREEMPT if not alternative.victims:
            return f"raise its priority to be first: starts now, {price}"
        case AlternativeKind.PREEMPT:
            once = f" ({money(alternative.cost_once)})" if alternative.cost_once else ""
            lost = f"{alternative.gpu_seconds_lost / 3600:.1f} GPU-hours{once}"
            return f"preempt {', '.join(alternative.victims)}: costs {lost}, then {price}"
        case AlternativeKind.BUY:
            return f"buy {many(alternative.nodes, 'node')} of {alternative.pool}" + (
                f": {hour}" if hour else ""
            )
        case _:  # pragma: no cover
            assert_never(alternative.kind)


def money(text: str) -> str:
    """Return a decimal as people read it."""
    return money_text(millionths(text))
