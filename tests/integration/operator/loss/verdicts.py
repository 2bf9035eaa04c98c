"""What operators under loss decide, judged in each of their cycles by I1 to I6 and I10.

`truth` judges what is committed; here a decision is judged that no write may have followed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from drumline.controller.scheduler import loop
from drumline_scheduler.cycle_cache import CycleCache
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.decisions import Decisions
from drumline_scheduler.work import Work
from tests.property.invariants import violations


@dataclass
class CycleVerdicts:
    """Violations by corner, each once."""

    _wrong: defaultdict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))

    def judge(self, cycle: CycleInput, *, decisions: Decisions) -> None:
        """Judge one cycle by what it was given; a corner has the name of its only queue."""
        for queue in cycle.snapshot.queues:
            sentences = violations(
                snapshot=cycle.snapshot,
                pending=cycle.pending,
                decisions=decisions,
                policy=cycle.policy,
                now=cycle.now,
            )
            self._wrong[queue.name] |= dict.fromkeys(f"a cycle: {each}" for each in sentences)

    def begin(self, corner: str) -> None:
        """A new life."""
        self._wrong.pop(corner, None)

    def of(self, corner: str) -> list[str]:
        return [*self._wrong.get(corner, ())]


@contextmanager
def judged_cycles() -> Iterator[CycleVerdicts]:
    """Every cycle of every operator in this process is judged."""
    verdicts, decide = CycleVerdicts(), loop.decide

    def judged(
        cycle: CycleInput, *, cache: CycleCache | None = None, work: Work | None = None
    ) -> Decisions:
        decisions = decide(cycle, cache=cache, work=work)
        verdicts.judge(cycle, decisions=decisions)
        return decisions

    loop.decide = judged
    try:
        yield verdicts
    finally:
        loop.decide = decide
