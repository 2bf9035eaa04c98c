"""State of the members from their heartbeats: the time of the last one, and their ranks' views."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from drumline_agent.protocol.member_reports import (
    SILENT_AFTER_INTERVALS,
    MemberHeartbeat,
    RankView,
    heartbeat_interval_seconds,
)
from drumline_agent.protocol.membership import Membership
from drumline_contract import MAX_SILENT, GenerationRecord, SilentMember


@dataclass(slots=True)
class _MemberState:
    heard_at: float
    """On the monotonic clock."""
    newest: MemberHeartbeat | None = None


class MemberHeartbeats:
    """Members of one record except the leader itself, by index."""

    def __init__(self, record: GenerationRecord, *, own_index: int) -> None:
        now = time.monotonic()
        self._silent_after = SILENT_AFTER_INTERVALS * heartbeat_interval_seconds(record)
        self._members = {
            member.index: _MemberState(now)
            for member in record.members
            if member.index != own_index
        }

    def record(self, heartbeat: MemberHeartbeat) -> None:
        """Record a heartbeat. One of an unknown member is ignored."""
        state = self._members.get(heartbeat.index)
        if state is not None:
            state.heard_at, state.newest = time.monotonic(), heartbeat

    def last_heard(self) -> dict[int, float]:
        """Return the time of the newest heartbeat by index, in seconds since the epoch."""
        # Incidents use wall-clock times, so that pods and the operator can compare them.
        offset = time.time() - time.monotonic()
        return {index: state.heard_at + offset for index, state in self._members.items()}

    def silent_members(self) -> tuple[SilentMember, ...]:
        """Return the members whose heartbeats are missing, the longest silent first."""
        now = time.monotonic()
        silent = [
            SilentMember(index=index, seconds=round(now - state.heard_at, 2))
            for index, state in self._members.items()
            if now - state.heard_at >= self._silent_after
        ]
        return tuple(sorted(silent, key=lambda member: -member.seconds)[:MAX_SILENT])

    def rank_views(self, membership: Membership, *, since: float = 0.0) -> list[RankView] | None:
        """Return a view of every rank of the other pods as of now.

        Returns:
            None unless every member has sent a heartbeat of this membership after `since`.
        """
        now = time.monotonic()
        views: list[RankView] = []
        for state in self._members.values():
            newest = state.newest
            # All or nothing: a missing rank could be the one behind all others.
            if newest is None or newest.membership != membership or state.heard_at < since:
                return None
            passed = now - state.heard_at
            views += [_as_of_now(view, passed=passed) for view in newest.ranks]
        return views


def _as_of_now(view: RankView, *, passed: float) -> RankView:
    """Age a view by `passed` seconds. A pause of 0 stays, since its phase may be long."""
    pause = view.pause
    # A pause of 0 means a phase in which silence is normal, so it does not grow.
    if pause is not None and pause.seconds > 0:
        pause = replace(pause, seconds=pause.seconds + passed)
    return replace(view, silent_seconds=view.silent_seconds + passed, pause=pause)
