"""Series of single jobs and nodes, for bills and for alerts that join job, queue and node.

They follow the conventions of kube-state-metrics: an `_info` metric is 1, and its labels are facts
to join by. A job's series end with the job. Unlike other metrics, their number grows with the
cluster. `Settings.job_metrics` limits the number of jobs with series, and at most `MOST_PLACES`
series tell which job is on which node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

# A bound for the memory of Prometheus: each series takes a few KB there.
MOST_PLACES: Final = 20_000
MOST_PARTIAL: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSeries:
    """One job that waits or holds GPUs.

    Attributes:
        namespace: namespace of the job.
        name: name of the job.
        queue: queue of the job.
        user: value of `spec.user`; '' for none.
        gpu_pool: where it holds GPUs; '' while it waits.
        gpus: how many it holds.
        nodes: where its members are, each once.
    """

    namespace: str
    name: str
    queue: str
    user: str = ""
    gpu_pool: str = ""
    gpus: float = 0
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeries:
    """One node of a pool.

    Attributes:
        name: name of the node.
        gpu_pool: pool of the node.
        domain: its topology domains, broadest first, joined by slashes.
    """

    name: str
    gpu_pool: str
    domain: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DisruptionSeries:
    """One announcement that a node goes out of service."""

    node: str
    kind: str
    confidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialGang:
    """A gang that holds GPUs without being whole, longer than its start may take."""

    namespace: str
    name: str
    queue: str
    missing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSeries:
    """Values of the collector, from one observation of the caches.

    Attributes:
        jobs: jobs with their own series.
        jobs_left_out: number of jobs without series.
        nodes: nodes of all pools.
        disruptions: announced disruptions, one for each node.
        partial: gangs that have been incomplete for too long.
    """

    jobs: tuple[JobSeries, ...] = ()
    jobs_left_out: int = 0
    nodes: tuple[NodeSeries, ...] = ()
    disruptions: tuple[DisruptionSeries, ...] = ()
    partial: tuple[PartialGang, ...] = ()


_JOB: Final = ("namespace", "training_job", "queue")


class ClusterSeriesCollector(Collector):
    """Shows the newest `ClusterSeries`; what it no longer has ends with the next scrape."""

    def __init__(self) -> None:
        self.newest = ClusterSeries()

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families, including families without samples."""
        # Families without samples keep their help text, so dashboards find the metric.
        yield from self._of_jobs()
        yield self._places()
        # A non-zero value means that joins by job are incomplete.
        left_out = GaugeMetricFamily(
            "drumline_job_series_left_out",
            "Jobs that wait or hold GPUs and have no series of their own, because metrics.jobs"
            " limits the number of series.",
        )
        left_out.add_metric((), self.newest.jobs_left_out)
        yield left_out
        yield from self._of_nodes()
        partial = GaugeMetricFamily(
            "drumline_gang_missing_members",
            "Members without a pod, of a gang that has been partly bound for longer than its"
            " start deadline.",
            labels=_JOB,
        )
        # Alerts need only to know that there are some, so a few are enough.
        for gang in self.newest.partial[:MOST_PARTIAL]:
            partial.add_metric((gang.namespace, gang.name, gang.queue), gang.missing)
        yield partial

    def _of_jobs(self) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "drumline_job_info",
            "Always 1 while the job waits or holds GPUs. Its labels are for joins.",
            labels=(*_JOB, "user", "gpu_pool"),
        )
        gpus = GaugeMetricFamily(
            "drumline_job_gpus", "GPUs that a job holds. Absent while it holds none.", labels=_JOB
        )
        for job in self.newest.jobs:
            labels = (job.namespace, job.name, job.queue)
            info.add_metric((*labels, job.user, job.gpu_pool), 1)
            # A pending job has an info series and no GPUs, so a sum counts holders only.
            if job.gpus:
                gpus.add_metric(labels, job.gpus)
        yield info
        yield gpus

    def _places(self) -> Metric:
        places = GaugeMetricFamily(
            "drumline_job_node",
            "Always 1 while the job has a member on the node.",
            labels=(*_JOB, "node"),
        )
        room = MOST_PLACES
        for job in self.newest.jobs:
            # Whole jobs only: a job with half of its nodes would give wrong joins.
            room -= len(job.nodes)
            if room < 0:
                break
            for node in job.nodes:
                places.add_metric((job.namespace, job.name, job.queue, node), 1)
        return places

    def _of_nodes(self) -> Iterator[Metric]:
        # The info metric keeps topology labels off all other node series.
        info = GaugeMetricFamily(
            "drumline_node_info",
            "Always 1 for every node of a pool. Its labels are for joins.",
            labels=("node", "gpu_pool", "domain"),
        )
        for node in self.newest.nodes:
            info.add_metric((node.name, node.gpu_pool, node.domain), 1)
        yield info
        disrupted = GaugeMetricFamily(
            "drumline_node_disrupted",
            "Always 1 while a signal announces that the node will go out of service.",
            labels=("node", "kind", "confidence"),
        )
        for each in self.newest.disruptions:
            disrupted.add_metric((each.node, each.kind, each.confidence), 1)
        yield disrupted
