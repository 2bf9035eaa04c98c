"""The reconciler's memory of a job between two runs.

All of it may be lost in a restart. That costs a harmless 409 or a second push, never a second pod.
Its times are of a clock that may be set back: a time after now counts as long ago (`is_recent`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from drumline.controller.agents.watch import GangReport
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import PodEvents, PodFacts
from drumline.lifecycle.model.sizes import chooses_layout

UNSEEN_SECONDS = 10.0
"""A pod that we created is created again if the watch does not show it within this time."""


def is_recent(at: float, *, now: float, seconds: float) -> bool:
    """Return whether a time is at most `seconds` ago.

    A time after now is not, because the clock was set back.
    """
    return at <= now < at + seconds


@dataclass(slots=True)
class JobMemory:
    """Memory of one job."""

    children_generation: int = 0
    """Generation for which the Secret was created last.

    The Secret outlives every generation unless somebody deletes it. Each generation creates it if
    it is missing.
    """
    shared_budget: bool = False
    """True if new pods of that generation are protected by their namespace's budget."""
    unseen: dict[str, float] = field(default_factory=dict[str, float])
    """Creation times of pods that the watch does not show yet, by name."""
    deleted: dict[str, float] = field(default_factory=dict[str, float])
    """Deletion times of pods that the watch does not show as terminating yet, by uid."""
    protected_generation: int = 0
    """Generation for which the disruption budget was created last."""
    evictable: dict[int, int] = field(default_factory=dict[int, int])
    """Number of members that the disruption budget lets go, by size of the job."""
    labelled: dict[str, tuple[bool, float]] = field(default_factory=dict[str, tuple[bool, float]])
    """Label and time of pods whose labels the watch does not show yet, by uid."""
    claims_generation: int = 0
    """Generation for whose pods the job's claims were checked."""
    pod_events: dict[str, PodEvents] = field(default_factory=dict[str, PodEvents])
    """Events of pods that do not start, by uid of the pod."""
    events_slot: float | None = None
    """Time at which the events that the plan requests may be read, in monotonic seconds."""
    acknowledged_generation: int | None = None
    contradicted_generation: int | None = None
    heard_generation: int = 0
    """Newest generation that the agents reported."""
    notified: str = ""
    """Id of the notice that the agents have."""
    withdrawn: str = ""
    """Id of the notice that was withdrawn from them."""
    agent_failures: int = 0
    """Failed pushes and notices in a row."""
    figures_at: float | None = None
    layout_generation: int | None = None
    """Generation whose layout was written before the regular interval."""
    written_at: float = 0.0
    """Time of our last status write."""

    @property
    def known_generation(self) -> int:
        """Return the newest generation that the agents know, as far as this process knows."""
        return max(self.acknowledged_generation or 0, self.heard_generation)

    def evictable_at(self, generation: int | None, *, size: int) -> int | None:
        """Return the number of members that the budget of a job of this size lets go, or None.

        Each generation checks again, because users may delete budgets.
        """
        return self.evictable.get(size) if self.protected_generation == generation else None

    def is_labelled(self, uid: str, *, protected: bool, now: float) -> bool:
        """Return whether this pod was given this label a moment ago.

        Args:
            uid: uid of the pod.
            protected: value of the label.
            now: Unix time in seconds.
        """
        before, at = self.labelled.get(uid, (None, 0.0))
        return before is protected and is_recent(at, now=now, seconds=UNSEEN_SECONDS)

    def is_deleted(self, uid: str, *, now: float) -> bool:
        """Return whether this pod was deleted a moment ago."""
        at = self.deleted.get(uid, -math.inf)
        return is_recent(at, now=now, seconds=UNSEEN_SECONDS)

    def note_deleted(self, pods: Iterable[PodFacts], *, now: float) -> None:
        """Record the deletion of these pods, and forget overdue deletions."""
        kept = {uid: at for uid, at in self.deleted.items() if self.is_deleted(uid, now=now)}
        self.deleted = kept | {pod.uid: now for pod in pods}

    def unseen_at(self, now: float, *, shown: set[str]) -> frozenset[str]:
        """Return names of pods that are still expected. Drop shown and overdue names."""
        self.unseen = {
            name: since
            for name, since in self.unseen.items()
            if name not in shown and is_recent(since, now=now, seconds=UNSEEN_SECONDS)
        }
        return frozenset(self.unseen)


def figures_due(
    job: Job, report: GangReport | None, memory: JobMemory, *, now: float, every: float
) -> bool:
    """Return whether to write figures now, and record it.

    They are written every `every` seconds, and once in a membership when its ranks train in another
    layout than the status shows. Otherwise the status would show another gang's layout for a minute
    after a change of size.

    Args:
        job: a training job.
        report: latest report of its agents.
        memory: memory of the job.
        now: seconds since the epoch.
        every: seconds between two writes.
    """
    if memory.figures_at is None:  # the first write comes one interval after the start
        memory.figures_at = now
    another = memory.layout_generation != job.status.generation and _is_another_layout(job, report)
    if is_recent(memory.figures_at, now=now, seconds=every) and not another:
        return False
    memory.figures_at = now
    if another:
        memory.layout_generation = job.status.generation
    return True


def _is_another_layout(job: Job, report: GangReport | None) -> bool:
    """Return whether this membership trains in a layout that the status does not show.

    A first start counts only if its ranks chose the layout. Otherwise the layout is the one in the
    spec, and needs no write.
    """
    if report is None or report.status.generation != job.status.generation:
        return False
    reported, shown = report.status.progress.layout, job.status.layout
    if not reported or reported == shown:
        return False
    return shown is not None or chooses_layout(job.spec)
