"""Track which jobs use which checkpoint folder, by the changes of jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from drumline.lifecycle.model.job import Job
from drumline.lifecycle.plan.checkpoint_folders import folder_of, holder_for


class CheckpointFolders:
    """The users of each folder.

    Args:
        job_at: the newest version known of the job `namespace/name`.
    """

    def __init__(self, job_at: Callable[[str], Job | None]) -> None:
        self._job_at = job_at
        self._users: defaultdict[str, set[str]] = defaultdict(set)
        self._folders: dict[str, str] = {}

    def changed(self, before: Job | None, after: Job | None) -> None:
        """Record that a job came, went, or has another version."""
        job = after or before
        if job is None:
            return
        folder = None if after is None else folder_of(after)
        known = self._folders.get(job.key)
        if folder == known:
            return
        if known is not None:
            self._users[known].discard(job.key)
            if not self._users[known]:
                del self._users[known]
            del self._folders[job.key]
        if folder is not None:
            self._users[folder].add(job.key)
            self._folders[job.key] = folder

    def holder_for(self, job: Job) -> Job | None:
        """Return the job that keeps this one from its folder. O(users of the folder)."""
        folder = self._folders.get(job.key)
        users = () if folder is None else self._users[folder]
        if len(users) < 2:
            return None
        rivals = (self._job_at(key) for key in users if key != job.key)
        return holder_for(job, users=[rival for rival in rivals if rival is not None])
