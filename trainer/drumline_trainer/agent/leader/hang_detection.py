"""Who of a gang hangs; pure.

A rank that waits in a collective cannot say so: it is as silent as the one it waits for. But all
ranks pass the same positions in the same order (`Heartbeat.position`), so while nobody moves, the
one to blame is behind all others. Where they stand in the same position, what the kernel says of
the processes may tell: stopped, or busy while the others wait. If nothing tells them apart nobody
is to blame (a dead link, say), and only the gang as a whole can be restarted, much later.

A rank that is behind but moves is slow, not hung: it ends the silence of the gang each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drumline_trainer.agent.protocol.member_reports import RankView
    from drumline_trainer.rank_protocol.heartbeat import Heartbeat

STOPPED = "stopped"
BUSY = "busy"
LEAST_PATIENCE_SECONDS = 2.0
STEPS_OF_PATIENCE = 4
LONG_PATIENCE_SECONDS = 30.0
"""For starting, restoring, compiling, writing: what takes its time now and then."""
LONG_FACTOR = 10
BUSY_FACTOR = 5
"""While anybody computes it may just be slow: so much more patience."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hung:
    """These ranks keep all others waiting."""

    ranks: tuple[int, ...]
    silent_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled:
    """Nobody moves and nobody is behind."""

    silent_seconds: float


@dataclass(frozen=True, slots=True)
class Moving:
    """All is well, as far as can be told."""


def patience_seconds(newest: Heartbeat | None, *, step_seconds: float | None) -> float:
    """How long a rank may be silent after this heartbeat. `step_seconds`: of its usual step."""
    if newest is None or step_seconds is None or _takes_its_time(newest):
        return max(LONG_PATIENCE_SECONDS, LONG_FACTOR * (step_seconds or 0.0))
    return max(LEAST_PATIENCE_SECONDS, STEPS_OF_PATIENCE * step_seconds)


def detect_hang(views: Sequence[RankView]) -> Hung | Stalled | Moving:
    """Look at all ranks of a gang at one time."""
    waiting = [view for view in views if not view.done]
    if not waiting:
        return Moving()
    silent = min(view.silent_seconds for view in waiting)
    patience = max(view.patience_seconds for view in waiting)
    if silent <= patience:
        return Moving()
    suspects = _suspects(views)
    if not suspects or len(suspects) == len(views):
        return Stalled(silent_seconds=silent)
    stopped = all(view.evidence == STOPPED for view in suspects)
    busy = any(view.evidence == BUSY for view in waiting)
    if busy and not stopped and silent <= BUSY_FACTOR * patience:
        return Moving()
    return Hung(ranks=tuple(sorted(view.rank for view in suspects)), silent_seconds=silent)


def _suspects(views: Sequence[RankView]) -> list[RankView]:
    """Those behind all others; among equals those that the kernel tells apart."""
    hindmost = min(view.position for view in views if not view.done)
    behind = [view for view in views if view.position == hindmost and not view.done]
    for evidence in (STOPPED, BUSY):
        marked = [view for view in behind if view.evidence == evidence]
        if marked and len(marked) < len(behind):
            return marked
    return behind


def _takes_its_time(newest: Heartbeat) -> bool:
    return newest.phase in ("starting", "restoring", "snapshot", "checkpoint")
