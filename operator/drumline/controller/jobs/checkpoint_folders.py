"""Track which jobs use which checkpoint folder, by the changes of jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from drumline.lifecycle.model.job import Job
from drumline.lifecycle.plan.checkpoint_folders import FolderTurn, folder_of, turn_of, waits_for


@dataclass(slots=True)
class _Users:
    """The users of a folder. Thousands of jobs may name one, so the first is found in a heap."""

    turns: dict[str, FolderTurn | None] = field(default_factory=dict[str, FolderTurn | None])
    """Turn of each user, by key of the job."""
    heap: list[FolderTurn] = field(default_factory=list[FolderTurn])
    """All turns, and outdated ones."""

    def set(self, job: Job) -> None:
        """Record a user's turn. O(log users)."""
        before, turn = self.turns.get(job.key), turn_of(job)
        self.turns[job.key] = turn
        if turn is None or turn == before:
            return
        heappush(self.heap, turn)
        if len(self.heap) > 2 * len(self.turns):
            self.heap = [each for each in self.turns.values() if each is not None]
            heapify(self.heap)

    def first(self) -> FolderTurn | None:
        """Return the lowest turn."""
        while self.heap and self.turns.get(self.heap[0].key) != self.heap[0]:
            heappop(self.heap)
        return self.heap[0] if self.heap else None


class CheckpointFolders:
    """The users of each folder.

    Args:
        job_at: the newest version known of the job `namespace/name`.
    """

    def __init__(self, job_at: Callable[[str], Job | None]) -> None:
        self._job_at = job_at
        self._users: defaultdict[str, _Users] = defaultdict(_Users)
        self._folders: dict[str, str] = {}

    def changed(self, before: Job | None, after: Job | None) -> None:
        """Record that a job came, went, or has another version."""
        job = after or before
        if job is None:
            return
        folder = None if after is None else folder_of(after)
        known = self._folders.get(job.key)
        if known is not None and folder != known:
            del self._users[known].turns[job.key]
            if not self._users[known].turns:
                del self._users[known]
            del self._folders[job.key]
        if after is not None and folder is not None:
            self._users[folder].set(after)
            self._folders[job.key] = folder

    def holder_for(self, job: Job) -> Job | None:
        """Return the job that keeps this one from its folder."""
        folder = self._folders.get(job.key)
        if folder is None or len(self._users[folder].turns) < 2:
            return None
        first = self._users[folder].first()
        return self._job_at(first.key) if first is not None and waits_for(job, first) else None
