"""Detection of complete checkpoints that a user's ranks write (`drumline_client`).

Each rank reports `saved` once its part of a step's checkpoint is written. A rank that moves to a
later step has no part in it (`if rank == 0: save`), unless it has reported `saving` before. Then
its part is written in the background. A checkpoint is complete when a rank has saved and no rank's
part is missing:

    rank 0   step 40   saved(40)               rank 0 has saved
    rank 1   step 40   step 41                 rank 1 has no part   -> complete, with rank 0's path
"""

from __future__ import annotations

from dataclasses import dataclass, field

from drumline_client.wire import PartBegun, PartSaved, StepReport

KEPT_STEPS = 4
"""Checkpoints under way at once; the oldest is dropped for a fifth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteCheckpoint:
    """All parts of a step are written."""

    step: int
    path: str
    """Path reported by the lowest rank that reported one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCheckpoint:
    """A rank could not write its part."""

    step: int
    rank: int
    error: str


@dataclass(slots=True)
class _Parts:
    begun: set[int] = field(default_factory=set[int])
    paths: dict[int, str] = field(default_factory=dict[int, str])
    failed: set[int] = field(default_factory=set[int])
    """Ranks that could not save. They may save once more."""


class CheckpointParts:
    """The checkpoints under way of one attempt."""

    def __init__(self, *, world_size: int) -> None:
        self._world_size = world_size
        self._steps: dict[int, int] = {}
        """Newest step of each rank."""
        self._under_way: dict[int, _Parts] = {}
        self._newest = -1
        """Steps up to this one are complete or have failed."""

    def handle(
        self, rank: int, message: StepReport | PartBegun | PartSaved
    ) -> CompleteCheckpoint | FailedCheckpoint | None:
        """Take in a rank's message. Returns the newest checkpoint that it completes or fails."""
        if not 0 <= rank < self._world_size:
            return None
        match message:
            case StepReport(step=step):
                if step is not None:
                    self._steps[rank] = step
            case PartBegun(step=step):
                if parts := self._parts(step):
                    parts.begun.add(rank)
            case PartSaved(step=step, error=error) if error:
                return self._fail(rank, step, error)
            case PartSaved(step=step, path=path):
                if parts := self._parts(step):
                    parts.begun.discard(rank)
                    parts.failed.discard(rank)
                    parts.paths[rank] = path
        return self._complete()

    def _parts(self, step: int) -> _Parts | None:
        if step <= self._newest:
            return None
        parts = self._under_way.setdefault(step, _Parts())
        if len(self._under_way) > KEPT_STEPS:
            del self._under_way[min(self._under_way)]
        return parts

    def _fail(self, rank: int, step: int, error: str) -> FailedCheckpoint | None:
        parts = self._parts(step)
        if parts is None:
            return None
        # Kept: the parts of other ranks may come later, and they are not a whole checkpoint.
        parts.begun.discard(rank)
        parts.failed.add(rank)
        return FailedCheckpoint(step=step, rank=rank, error=error)

    def _complete(self) -> CompleteCheckpoint | None:
        complete = [step for step, parts in self._under_way.items() if self._is_whole(step, parts)]
        if not complete:
            return None
        self._newest = max(complete)
        paths = self._under_way[self._newest].paths
        self._under_way = {s: parts for s, parts in self._under_way.items() if s > self._newest}
        path = next((paths[rank] for rank in sorted(paths) if paths[rank]), "")
        return CompleteCheckpoint(step=self._newest, path=path)

    def _is_whole(self, step: int, parts: _Parts) -> bool:
        if parts.failed:
            return False
        return bool(parts.paths) and all(
            rank in parts.paths or (rank not in parts.begun and self._steps.get(rank, -1) > step)
            for rank in range(self._world_size)
        )
