"""A cluster in memory for the page's server, which remembers what was asked of it."""

from __future__ import annotations

from typing import Any

from drumline.overview.objects import ClusterObjects
from drumline_cli.decide import what_if
from drumline_cli.decide.cycle import read_policy
from drumline_cli.decide.live_objects import documents
from drumline_cli.decide.what_if import Change, WhatIfAnswer
from drumline_cli.errors import NotAnswered
from drumline_cli.jobs.named_job import NamedJob
from drumline_cli.report.job_input import JobInput, job_input
from tests.unit.overview.objects import NOW, a_cluster, a_job, a_queue

DRUMLINE = "drumline.dev/v1alpha1"
GROUPS = {
    **dict.fromkeys(("TrainingJob", "TrainingQueue", "GpuPool"), DRUMLINE),
    "PriorityClass": "scheduling.k8s.io/v1",
}


class Shown:
    """Objects as the API server prints them; by default a queue and two jobs."""

    def __init__(self, *objects: dict[str, Any], events: tuple[dict[str, Any], ...] = ()) -> None:
        self.acts: list[tuple[Any, ...]] = []
        self.events = events
        self.objects = objects or (
            a_queue("research"),
            a_job("runs", status={"phase": "Running"}),
            a_job("waits"),
        )
        self._cluster = a_cluster(*self.objects)

    async def cluster(self) -> ClusterObjects:
        return self._cluster

    async def job(self, job: NamedJob) -> JobInput:
        return job_input(self._manifest(job), events=self.events, as_of=NOW)

    async def manifest(self, job: NamedJob) -> dict[str, Any]:
        return self._manifest(job)

    async def what_if(self, change: Change) -> WhatIfAnswer:
        raws = [_stored(each) for each in self.objects]
        known = what_if.baseline(documents(raws, as_of=NOW), policy=read_policy(None))
        return what_if.answer(known, change)

    async def change(self, job: NamedJob, spec: dict[str, Any]) -> None:
        self.acts.append(("change", job.key, spec))

    async def delete(self, job: NamedJob, *, uid: str) -> None:
        self.acts.append(("delete", job.key, uid))

    async def clone(self, job: NamedJob, manifest: dict[str, Any]) -> None:
        self.acts.append(("clone", job.key, manifest))

    def _manifest(self, job: NamedJob) -> dict[str, Any]:
        for each in self.objects:
            if each["kind"] == "TrainingJob" and (
                each["metadata"]["namespace"],
                each["metadata"]["name"],
            ) == (job.namespace, job.name):
                return each
        raise NotAnswered(f"trainingjob {job.name!r} not found in namespace {job.namespace!r}")


def _stored(raw: dict[str, Any]) -> dict[str, Any]:
    """Return an object as the API server prints it."""
    metadata = {"resourceVersion": "1", **raw["metadata"]}
    return {"apiVersion": GROUPS.get(raw["kind"], "v1"), **raw, "metadata": metadata}
