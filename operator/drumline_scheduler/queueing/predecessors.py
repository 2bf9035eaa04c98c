"""Answer gangs that have to wait for other jobs to end.

`lifecycle.model.chains` decides which predecessors have ended, failed or are missing. A gang with
predecessors gets an answer and is not considered further. Slurm's `--dependency` has the same
reasons: `Dependency`, and `DependencyNeverSatisfied` if waiting does not help.
https://slurm.schedmd.com/sbatch.html#OPT_dependency
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drumline_scheduler.decisions import BlockReason, Remedy, RemedyKind
from drumline_scheduler.model import Predecessor, PredecessorState
from drumline_scheduler.rejections import Rejection, named

_FIRST: Final = (
    PredecessorState.CIRCULAR,
    PredecessorState.FAILED,
    PredecessorState.NOT_FOUND,
    PredecessorState.WAITED_FOR,
    PredecessorState.HOLDS_FOLDER,
)
"""States that need a person to act come before states that pass."""
_CHANGE: Final = "suspend this job and change spec.after"


def waiting_for_predecessors(after: Sequence[Predecessor]) -> Rejection:
    """Return the rejection of a gang with these predecessors (at least one)."""
    by_state = {state: [each for each in after if each.state is state] for state in _FIRST}
    # Name only the predecessors in the most serious state.
    state = next(state for state in _FIRST if by_state[state])
    these = by_state[state]
    keys = [each.key for each in these]
    match state:
        case PredecessorState.CIRCULAR:
            circle = " after ".join(these[0].circle)
            return Rejection(
                reason=BlockReason.CIRCULAR_DEPENDENCY,
                message=f"spec.after has a cycle, {circle}: suspend one of these jobs and change"
                " its spec.after",
            )
        case PredecessorState.FAILED:
            return Rejection(
                reason=BlockReason.PREDECESSOR_FAILED,
                message=f"starts after {named(keys)} has succeeded, but it failed: delete it and"
                f" create it again, or {_CHANGE}",
            )
        case PredecessorState.NOT_FOUND:
            return Rejection(
                reason=BlockReason.PREDECESSOR_NOT_FOUND,
                message=f"starts after {named(keys)}, which does not exist: create it, or"
                f" {_CHANGE}",
            )
        case PredecessorState.WAITED_FOR:
            ends = [f"{each.key} {_end(each)}" for each in these]
            return Rejection(
                reason=BlockReason.WAITING_FOR_JOBS,
                message=f"starts after {named(ends)}",
                blockers=tuple(keys),
                remedy=Remedy(kind=RemedyKind.WAIT_FOR),
            )
        case PredecessorState.HOLDS_FOLDER:
            return Rejection(
                reason=BlockReason.CHECKPOINT_FOLDER_IN_USE,
                message=f"held by {named(keys)}: both jobs have the same checkpoint folder. Wait"
                " until it ends, or delete this job and set another checkpoint.path",
                blockers=tuple(keys),
                remedy=Remedy(kind=RemedyKind.WAIT_FOR),
            )


def _end(predecessor: Predecessor) -> str:
    return "has succeeded" if predecessor.must_succeed else "has ended"
