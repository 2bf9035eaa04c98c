"""What the leader knows of the gang: when each member was heard, and where its ranks stand."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from drumline_trainer.contract import MAX_SILENT, SilentMember

if TYPE_CHECKING:
    from drumline_trainer.agent.protocol.leader_orders import Membership
    from drumline_trainer.agent.protocol.member_reports import MemberHeartbeat, RankView
    from drumline_trainer.contract import GenerationRecord

HEARTBEAT_SECONDS = 1.0
MAX_HEARTBEATS_PER_SECOND = 250
"""A leader takes so many; above 250 members the interval grows."""
SILENT_AFTER_INTERVALS = 2.5
"""Intervals without a beat after which a member is called silent."""


def heartbeat_interval_seconds(record: GenerationRecord) -> float:
    """How often each member of a gang tells its leader that it lives."""
    return max(HEARTBEAT_SECONDS, len(record.members) / MAX_HEARTBEATS_PER_SECOND)


@dataclass(slots=True)
class _Row:
    heard_at: float
    beat: MemberHeartbeat | None = None


class MemberHeartbeats:
    """Members of one record but the leader itself, by index."""

    def __init__(self, record: GenerationRecord, *, own_index: int) -> None:
        now = time.monotonic()
        self._silent_after = SILENT_AFTER_INTERVALS * heartbeat_interval_seconds(record)
        self._rows = {
            member.index: _Row(now) for member in record.members if member.index != own_index
        }

    def record(self, beat: MemberHeartbeat) -> None:
        """A member lives."""
        row = self._rows.get(beat.index)
        if row is not None:
            row.heard_at, row.beat = time.monotonic(), beat

    def last_heard(self) -> dict[int, float]:
        """By index, in seconds since the epoch."""
        offset = time.time() - time.monotonic()
        return {index: row.heard_at + offset for index, row in self._rows.items()}

    def silent_members(self) -> tuple[SilentMember, ...]:
        """Members that have missed beats, the longest silent first."""
        now = time.monotonic()
        silent = [
            SilentMember(index=index, seconds=round(now - row.heard_at, 2))
            for index, row in self._rows.items()
            if now - row.heard_at >= self._silent_after
        ]
        return tuple(sorted(silent, key=lambda one: -one.seconds)[:MAX_SILENT])

    def rank_views(self, membership: Membership, *, since: float = 0.0) -> list[RankView] | None:
        """Every rank of the other pods as of now; None unless all were heard after `since`."""
        now = time.monotonic()
        views: list[RankView] = []
        for row in self._rows.values():
            if row.beat is None or row.beat.membership != membership or row.heard_at < since:
                return None
            passed = now - row.heard_at
            views += [
                replace(view, silent_seconds=view.silent_seconds + passed)
                for view in row.beat.ranks
            ]
        return views
