"""The usage history of each queue: the past use that fair shares count.

It is observed every few seconds. Until the next observation, each queue is assumed to hold the same
share. The history is also stored in the status of each queue, at a slow pace, so that a new leader
can continue it. The use in the minutes around a change of leaders may not be counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drumline.lifecycle.model.timestamps import parse_timestamp, timestamp
from drumline_scheduler.model import Snapshot
from drumline_scheduler.quota.fair_sharing import decay, dominant_shares

WRITE_SECONDS = 600.0
"""Least time between two writes of a queue's status that record only the passing time."""

Json = Mapping[str, Any]


class QueueUsageHistory:
    """The decayed usage of every queue. Use it in one event loop only.

    Args:
        half_life: seconds after which past usage counts half.
    """

    def __init__(self, *, half_life: float) -> None:
        self._half_life = half_life
        self._history: Mapping[str, float] = {}
        self._shares: Mapping[str, float] = {}
        self._at: float | None = None

    def restore(self, statuses: Mapping[str, Json], *, now: float) -> None:
        """Load the figures of the queues' statuses. A malformed figure counts as none."""
        history: dict[str, float] = {}
        for name, status in statuses.items():
            had, at = status.get("shareSeconds"), _moment(status.get("shareSecondsAt"))
            if isinstance(had, int) and at is not None:
                history |= self._later({name: float(had)}, {}, now - at)
        self._history, self._at = history, now

    def at(self, now: float) -> Mapping[str, float]:
        """Return `Snapshot.history` at this time."""
        if self._at is None:
            return {}
        return self._later(self._history, self._shares, now - self._at)

    def observe(self, snapshot: Snapshot, *, now: float) -> None:
        """Set the shares that queues hold from now on."""
        self._history, self._at = self.at(now), now
        self._shares = dominant_shares(snapshot)

    def status_fields(
        self, name: str, *, before: Json, changed: bool, now: float
    ) -> dict[str, Any]:
        """Return the fields of a queue's status that hold its history.

        Args:
            name: name of the queue.
            before: its current status.
            changed: whether the status is written for another reason.
            now: seconds since the epoch.
        """
        known = {key: before[key] for key in ("shareSeconds", "shareSecondsAt") if key in before}
        at = _moment(before.get("shareSecondsAt"))
        # Time alone changes the figure always, so the pace bounds the writes.
        if not changed and at is not None and now < at + WRITE_SECONDS:
            return known
        had = round(self.at(now).get(name, 0.0))
        # A queue that never held a GPU does not get the fields.
        if not had and not known.get("shareSeconds"):
            return known
        return {"shareSeconds": had, "shareSecondsAt": timestamp(now)}

    def _later(
        self, history: Mapping[str, float], shares: Mapping[str, float], passed: float
    ) -> dict[str, float]:
        passed = max(0.0, passed)  # the clock of another leader may be ahead
        return decay(history=history, shares=shares, seconds=passed, half_life=self._half_life)


def _moment(text: object) -> float | None:
    try:
        return parse_timestamp(text) if isinstance(text, str) else None
    except ValueError:
        return None
