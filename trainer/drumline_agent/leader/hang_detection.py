"""Detection of the ranks of a gang that hang; pure.

A rank that waits in a collective is as silent as the rank it waits for. But all ranks pass the same
positions in the same order (`Heartbeat.position`). So while no rank moves, the rank that hangs is
behind all others:

    rank 0 at (7, 0, backward)   silent for 5 s   waits in the all-reduce
    rank 1 at (7, 0, forward)    silent for 5 s   <- behind: it hangs

If processes run ahead of their devices (NCCL), positions mean little. The progress of the ranks in
their collectives then takes precedence (`hang_blame`).

Among ranks in the same position the kernel's evidence may distinguish them: stopped, or busy while
the others wait. Without such evidence (a dead link, say) the gang is stalled and can only be
restarted as a whole, much later. A rank that is behind but moves is slow and does not hang. It ends
the silence of the gang each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drumline_agent.leader.hang_blame import HangCause, blame
from drumline_agent.protocol.member_reports import ProcessEvidence, RankView

BUSY_FACTOR = 5
"""A rank that computes may just be slow: it gets this many times the patience."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hung:
    """These ranks keep all others waiting."""

    ranks: tuple[int, ...]
    silent_seconds: float
    reason: str = ""
    """Explanation from the collectives. Empty: the backend does not track them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled:
    """No rank moves and none is behind."""

    silent_seconds: float
    reason: str = ""
    """Explanation from the collectives, as in `Hung`."""


@dataclass(frozen=True, slots=True)
class Moving:
    """No hang is detected."""


def detect_hang(views: Sequence[RankView]) -> Hung | Stalled | Moving:
    """Judge all ranks of a gang as of one time."""
    # Finished ranks are silent for good reason.
    waiting = [view for view in views if not view.done]
    if not waiting:
        return Moving()
    # 1. While any rank moves, the gang is slow and does not hang.
    silent = min(view.silent_seconds for view in waiting)
    patience = max(view.patience_seconds for view in waiting)
    if silent <= patience:
        return Moving()
    # 2. Collective progress beats positions: on GPUs all processes wait in the same place.
    known = {view.rank: view.progress for view in waiting if view.progress is not None}
    verdict = blame(known, ranks=[view.rank for view in waiting])
    reason = "" if verdict is None else verdict.reason
    if verdict is None:
        suspects = _suspects(views)
    else:
        suspects = [view for view in waiting if view.rank in verdict.culprits]
    # 3. All or none stand out: only a restart of the whole gang can help.
    if not suspects or len(suspects) == len(views):
        return Stalled(silent_seconds=silent, reason=reason)
    # 4. Busy ranks may be in a long kernel or compile, so they get `BUSY_FACTOR` times as long.
    unanswered = verdict is not None and verdict.cause is HangCause.SILENT
    stopped = all(view.evidence == ProcessEvidence.STOPPED for view in suspects)
    busy = any(view.evidence == ProcessEvidence.BUSY for view in waiting)
    if (busy or unanswered) and not stopped and silent <= BUSY_FACTOR * patience:
        return Moving()
    ranks = tuple(sorted(view.rank for view in suspects))
    return Hung(ranks=ranks, silent_seconds=silent, reason=reason)


def _suspects(views: Sequence[RankView]) -> list[RankView]:
    """Return the ranks behind all others, reduced to those that the kernel's evidence marks."""
    hindmost = min(view.position for view in views if not view.done)
    behind = [view for view in views if view.position == hindmost and not view.done]
    # A stopped process is a certain cause. A busy one is likely, if others only wait.
    for evidence in (ProcessEvidence.STOPPED, ProcessEvidence.BUSY):
        marked = [view for view in behind if view.evidence == evidence]
        if marked and len(marked) < len(behind):
            return marked
    return behind
