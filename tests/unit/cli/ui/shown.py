"""A cluster in memory for the page's server, which remembers what was asked of it."""

from __future__ import annotations

from typing import Any

from drumline.cli.errors import NotAnswered
from drumline.cli.report.job_input import JobInput, job_input
from drumline.overview.objects import ClusterObjects
from tests.unit.overview.objects import NOW, a_cluster, a_job, a_queue


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

    async def job(self, namespace: str, name: str) -> JobInput:
        return job_input(self._manifest(namespace, name), events=self.events, as_of=NOW)

    async def suspend(self, namespace: str, name: str, *, suspend: bool) -> None:
        self.acts.append((namespace, name, suspend))

    def _manifest(self, namespace: str, name: str) -> dict[str, Any]:
        for each in self.objects:
            if each["kind"] == "TrainingJob" and (
                each["metadata"]["namespace"],
                each["metadata"]["name"],
            ) == (namespace, name):
                return each
        raise NotAnswered(f"trainingjob {name!r} not found in namespace {namespace!r}")
