"""The log of a gang's incidents: numbered by the membership that each recovery led to.

The leader writes it; every `Go` carries it to all members, so it survives the leader. A recovery
that another fault interrupted is over when that one is: both end with the first step after it.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from drumline_trainer.agent.base.events import AgentEvent, log
from drumline_trainer.contract import MAX_CAUSE_CHARS, Incident, RestoreTier

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drumline_trainer.agent.state.rank_status import RankStatusStore
    from drumline_trainer.rank_protocol.heartbeat import Heartbeat

KEPT = 32


class IncidentLog:
    """Incidents by number, oldest first; the board shows them."""

    def __init__(self, board: RankStatusStore) -> None:
        self._board = board
        self._incidents: dict[tuple[int, int], Incident] = {}

    @property
    def all(self) -> tuple[Incident, ...]:
        """Oldest first."""
        return tuple(self._incidents.values())

    @property
    def open(self) -> tuple[Incident, ...]:
        """Those whose recovery is not over."""
        return tuple(one for one in self._incidents.values() if one.first_step_at is None)

    def add(self, incident: Incident) -> None:
        """Write one down."""
        cause = incident.cause[:MAX_CAUSE_CHARS]
        self._put([replace(incident, cause=cause)])

    def by_membership(self, membership: tuple[int, int]) -> Incident | None:
        """The one whose recovery led to this membership, or would have."""
        return self._incidents.get(membership)

    def merge(self, incidents: Iterable[Incident]) -> None:
        """What another agent knows.

        Of two versions the one that knows how it ended counts, with the fuller story of who is to
        blame.
        """
        news: list[Incident] = []
        for one in incidents:
            known = self._incidents.get((one.generation, one.attempt))
            if known is None:
                news.append(one)
            elif known.first_step_at is None:
                news.append(_blaming(one, max(one, known, key=_story)))
        self._put(news)

    def update_open(self, **facts: Any) -> None:
        """Add facts to the recoveries under way; a time that is known already stays."""
        self._put([_with(one, facts) for one in self.open])

    def complete_open(self, **facts: Any) -> None:
        """The recoveries under way are over: the first step is finished."""
        closing = [(one.generation, one.attempt) for one in self.open]
        if not closing:
            return
        self.update_open(first_step_at=time.time(), **facts)
        for number in closing:
            log(AgentEvent.INCIDENT, incident=asdict(self._incidents[number]))

    def to_json(self) -> list[dict[str, Any]]:
        """For `Go`."""
        return [{**asdict(one), "also": list(one.also)} for one in self.all]

    def _put(self, incidents: Iterable[Incident]) -> None:
        whole = self._incidents | {(one.generation, one.attempt): one for one in incidents}
        self._incidents = dict(sorted(whole.items())[-KEPT:])
        self._board.incidents = self.all
        self._board.publish()


class RecoveryTracker:
    """Follows the leader's own ranks through one attempt: when they met, restored, stepped.

    All ranks of a gang pass these together, so its own stand for all.
    """

    def __init__(
        self,
        incidents: IncidentLog,
        *,
        membership: tuple[int, int],
        ranks: range,
        fetched: bool,
    ) -> None:
        self._incidents = incidents
        self._membership = membership
        self._unheard = set(ranks)
        self._memory = RestoreTier.PEER if fetched else RestoreTier.MEMORY
        self.restored_step: int | None = None
        self.stepped = False
        """A step has been finished in this attempt."""

    def follow(self, heartbeat: Heartbeat) -> None:
        """Take a heartbeat of a local rank."""
        if (heartbeat.generation, heartbeat.attempt) != self._membership or self.stepped:
            return
        now = time.time()
        self._unheard.discard(heartbeat.rank)
        if not self._unheard:
            self._incidents.update_open(replaced_at=now, joined_at=now)
        if self.restored_step is None and heartbeat.position[0] >= 0:
            restored = heartbeat.restored_step
            self.restored_step = heartbeat.step if restored is None else restored
            self._incidents.update_open(
                replaced_at=now,
                joined_at=now,
                restored_at=now,
                restored_step=self.restored_step,
                tier=self._tier(heartbeat.restored_from),
            )
        if self.restored_step is not None and (
            heartbeat.step > self.restored_step or heartbeat.phase == "done"
        ):
            self.stepped = True
            self._incidents.complete_open()

    def _tier(self, restored_from: RestoreTier | None) -> RestoreTier | None:
        """Ranks know their own memory only; that some of it came from another node we know."""
        return self._memory if restored_from is RestoreTier.MEMORY else restored_from


def _story(incident: Incident) -> tuple[bool, int, int]:
    """How much it says of who is to blame."""
    return incident.culprit_index is not None, len(incident.fault_classes), len(incident.cause)


def _blaming(incident: Incident, teller: Incident) -> Incident:
    return replace(
        incident,
        fault_class=teller.fault_class,
        also=teller.also,
        cause=teller.cause,
        culprit_index=teller.culprit_index,
        culprit_rank=teller.culprit_rank,
    )


def _with(incident: Incident, facts: dict[str, Any]) -> Incident:
    """Times are kept once known; all else is overwritten."""
    news = {
        name: value
        for name, value in facts.items()
        if not name.endswith("_at") or getattr(incident, name) is None
    }
    changed = replace(incident, **news)
    # A recovery that was interrupted before it had restored cannot have lost steps of its own.
    return replace(changed, failed_step=max(changed.failed_step, changed.restored_step))
