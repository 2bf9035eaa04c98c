"""A leader's caches as far as budgets need them, and the jobs that it looks at."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from drumline.controller.informers.specs import SpecCache
from drumline.controller.jobs.jobs import JobCache
from drumline.controller.queues.budgets import QueueBudgets
from drumline.controller.queues.gpu_seconds_rates import GpuSecondsRates
from drumline.kube.views import ObjectView, TrainingJobView
from drumline.lifecycle.model.timestamps import timestamp
from drumline_api.trainingqueue import TrainingQueueSpec
from tests.unit.controller.views import assignment, job_view, queue_view

DAY = 86_400
TODAY = 19_996
NOON = TODAY * DAY + DAY // 2
BUDGET = {"gpuHours": 100, "windowDays": 30}


def a_queue(name: str = "research", **spec: Any) -> ObjectView:
    whole = {**queue_view(name).spec, **spec}
    return ObjectView(namespace="", name=name, uid=name, resource_version="1", spec=whole)


def runs(
    name: str = "llama", *, since: float, had: int = 0, queue: str = "research", gpus: int = 2
) -> TrainingJobView:
    """Holds two pods of `gpus` GPUs since then, and had something before."""
    return job_view(
        name,
        uid=name,
        queue=queue,
        gpusPerNode=gpus,
        status={
            **assignment("node-0", "node-1"),
            "gpuSeconds": {"until": timestamp(since), "starting": had},
        },
    )


def ended(name: str = "llama", *, at: float, had: int, queue: str = "research") -> TrainingJobView:
    return job_view(
        name,
        uid=name,
        queue=queue,
        status={
            "finishedAt": timestamp(at),
            "gpuSeconds": {"until": timestamp(at), "starting": had},
        },
    )


class Leader:
    """An operator's caches, as far as budgets need them."""

    def __init__(self, *queues: ObjectView, statuses: Mapping[str, Any] | None = None) -> None:
        self.specs = SpecCache(TrainingQueueSpec)
        for queue in queues or (a_queue(budget=BUDGET),):
            self.specs.on_object(None, queue)
        self.jobs = JobCache(changed=lambda *_: None, forgotten=lambda *_: None)
        self.prices = {"h100": 2_500_000}
        self.budgets = QueueBudgets(self.specs, price_of=self.prices.get)
        self.rates = GpuSecondsRates()
        self.shown: dict[str, TrainingJobView] = {}
        self.budgets.restore(statuses or {})

    def look(self, now: float, *jobs: TrainingJobView, foreign: float = 0) -> dict[int, int]:
        """The jobs are these now; what `research` had, by day from today."""
        for name in {*self.shown} - {job.name for job in jobs}:
            self.jobs.on_job(self.shown.pop(name), None)
        for job in jobs:
            self.jobs.on_job(self.shown.get(job.name), job)
            self.shown[job.name] = job
        uses, pods = self.rates.of(self.jobs.all()), {("research", "h100"): Fraction(foreign)}
        self.budgets.observe(uses, foreign_gpus=pods, now=now)
        return self.spent(now)

    def spent(self, now: float) -> dict[int, int]:
        days = self.budgets.spent(now)["research"]
        return {day - TODAY: had for day, had in days.items()}

    def status(self, now: float, **rest: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {"before": {}, "changed": True, **rest}
        return self.budgets.status_fields("research", now=now, **fields)

    def after_it(self, now: float) -> Leader:
        """The next leader, which knows what this one has written."""
        leader = Leader(statuses={"research": self.status(now)})
        leader.specs = self.specs
        leader.budgets = QueueBudgets(self.specs, price_of=leader.prices.get)
        leader.budgets.restore({"research": self.status(now)})
        return leader
