"""What waiting jobs are told about their start on the way, to be held against what comes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from drumline.scheduling import Gang, Policy, Snapshot
from drumline.scheduling.waiting.forecast import ExpectedStart, expected_starts
from drumline.simulator.results.outcome import Promise

Forecaster = Callable[..., Sequence[ExpectedStart]]
"""`expected_starts`, or something like it."""


@dataclass(slots=True, kw_only=True)
class Foreteller:
    """Asks for expected starts now and then, and remembers the answers."""

    every_seconds: float
    forecaster: Forecaster = expected_starts
    _next_at: float = field(default=float("-inf"), init=False)
    _told: list[tuple[float, ExpectedStart]] = field(
        default_factory=list[tuple[float, ExpectedStart]], init=False
    )

    def ask(
        self, *, snapshot: Snapshot, pending: Iterable[Gang], policy: Policy, now: float
    ) -> None:
        """Ask, unless that was done a short time ago or nobody waits."""
        waiting = list(pending)
        if now < self._next_at or not waiting:
            return
        self._next_at = now + self.every_seconds
        answers = self.forecaster(snapshot=snapshot, pending=waiting, policy=policy, now=now)
        self._told += [(now, one) for one in answers]

    def promises(self, starts: Mapping[str, float | None]) -> tuple[Promise, ...]:
        """Every answer whose job started afterwards for the first time.

        Args:
            starts: the first start of each job by uid.
        """
        found: list[Promise] = []
        for told_at, one in self._told:
            started_at = starts[one.uid]
            if started_at is None or started_at <= told_at or one.p50_at is None:
                continue
            found.append(
                Promise(
                    uid=one.uid,
                    told_at=told_at,
                    expected_at=one.p50_at,
                    latest_at=one.p90_at if one.p90_at is not None else one.p50_at,
                    started_at=started_at,
                )
            )
        return tuple(found)
