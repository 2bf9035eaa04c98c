"""What the reconciler remembers of a job between two runs.

All of it may be lost (a restart): that costs a harmless 409 or a second push, never a second pod.
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
"""A pod created by us that the watch does not show within this time is created again."""


@dataclass(slots=True)
class JobMemory:
    """The memory of one job."""

    children_generation: int = 0
    """The generation for which the Secret was created last. It outlives every generation, unless
    somebody deletes it: each generation creates it where it is missing."""
    shared_budget: bool = False
    """Whether the new pods of that generation are protected by their namespace's budget."""
    unseen: dict[str, float] = field(default_factory=dict[str, float])
    """Pods created, by name, with the time: not shown by the watch yet."""
    deleted: dict[str, float] = field(default_factory=dict[str, float])
    """Pods whose deletion was asked for, by uid, with the time: not shown as terminating yet."""
    protected_generation: int = 0
    """The generation for which the disruption budget was created last."""
    evictable: dict[int, int] = field(default_factory=dict[int, int])
    """How many members each disruption budget lets go, by the size of the job it is for."""
    labelled: dict[str, tuple[bool, float]] = field(default_factory=dict[str, tuple[bool, float]])
    """How pods were labelled (whether as protected), by uid, with the time: not shown yet."""
    claims_generation: int = 0
    """The generation for whose pods the job's claims were looked at."""
    pod_events: dict[str, PodEvents] = field(default_factory=dict[str, PodEvents])
    """What was read of the events of pods that do not come up, by the pod's uid."""
    events_slot: float | None = None
    """When the events that the plan asks for may be read."""
    acknowledged_generation: int | None = None
    contradicted_generation: int | None = None
    heard_generation: int = 0
    """The newest generation that the agents reported."""
    notified: str = ""
    """Id of the notice that the agents have."""
    withdrawn: str = ""
    """Id of the notice that was withdrawn from them."""
    agent_failures: int = 0
    """Of pushes and notices, in a row."""
    figures_at: float | None = None
    layout_generation: int | None = None
    """The generation whose layout was written out of turn."""
    written_at: float = 0.0
    """Our last status write."""

    @property
    def known_generation(self) -> int:
        """The newest generation that the agents know of, as far as this process knows."""
        return max(self.acknowledged_generation or 0, self.heard_generation)

    def evictable_at(self, generation: int | None, *, size: int) -> int | None:
        """How many members the budget of a job of this size lets go; None: not known.

        Each generation asks anew, as users may delete budgets.
        """
        return self.evictable.get(size) if self.protected_generation == generation else None

    def is_labelled(self, uid: str, *, protected: bool, now: float) -> bool:
        """Whether this pod was labelled so a moment ago."""
        before, at = self.labelled.get(uid, (None, 0.0))
        return before is protected and now < at + UNSEEN_SECONDS

    def is_deleted(self, uid: str, *, now: float) -> bool:
        """Whether this pod's deletion was asked for a moment ago."""
        return now < self.deleted.get(uid, -math.inf) + UNSEEN_SECONDS

    def note_deleted(self, pods: Iterable[PodFacts], *, now: float) -> None:
        """The API server was asked to delete these; what is overdue is forgotten."""
        kept = {uid: at for uid, at in self.deleted.items() if now < at + UNSEEN_SECONDS}
        self.deleted = kept | {pod.uid: now for pod in pods}

    def unseen_at(self, now: float, *, shown: set[str]) -> frozenset[str]:
        """Names of pods still to be expected; shown and overdue names are dropped."""
        self.unseen = {
            name: since
            for name, since in self.unseen.items()
            if name not in shown and now < since + UNSEEN_SECONDS
        }
        return frozenset(self.unseen)


def figures_due(
    job: Job, report: GangReport | None, memory: JobMemory, *, now: float, every: float
) -> bool:
    """Whether figures are to be written now; the memory then takes note of it.

    Once in `every` seconds, and once in a membership as soon as its ranks train in another layout
    than the status shows: after a change of size that would be another gang's, for a minute.

    Args:
        job: it trains.
        report: the latest of its agents.
        memory: of the job.
        now: seconds since the epoch.
        every: seconds between two writes.
    """
    if memory.figures_at is None:  # the first write comes one interval after the start
        memory.figures_at = now
    another = memory.layout_generation != job.status.generation and _is_another_layout(job, report)
    if now < memory.figures_at + every and not another:
        return False
    memory.figures_at = now
    if another:
        memory.layout_generation = job.status.generation
    return True


def _is_another_layout(job: Job, report: GangReport | None) -> bool:
    """Whether the ranks of this membership train in a layout that the status does not show.

    Of a first start only where they chose it: of any other it is as written, and costs no write.
    """
    if report is None or report.status.generation != job.status.generation:
        return False
    reported, shown = report.status.progress.layout, job.status.layout
    if not reported or reported == shown:
        return False
    return shown is not None or chooses_layout(job.spec)
