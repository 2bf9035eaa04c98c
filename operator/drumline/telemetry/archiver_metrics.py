"""Metrics of the archiver: what was written, what is due, and whether the storage takes it."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Counter, Gauge, generate_latest

from drumline.telemetry.registry import process_registry


class ArchiverMetrics:
    """Counters and gauges of one archiver."""

    def __init__(self) -> None:
        self.registry = registry = process_registry()
        self.documents = Counter(
            "drumline_archiver_documents_written_total",
            "Job documents that were written, by state of the job: live or ended.",
            ["kind"],
            registry=registry,
        )
        for kind in ("live", "ended"):
            self.documents.labels(kind)
        self.failures = Counter(
            "drumline_archiver_failures_total",
            "Rounds that the storage rejected. The documents stay due.",
            registry=registry,
        )
        self._due = Gauge(
            "drumline_archiver_due_jobs",
            "Jobs with changes that are not in the archive yet.",
            registry=registry,
        )
        self._overdue_seconds = Gauge(
            "drumline_archiver_overdue_seconds",
            "Time for which the oldest of these has been overdue. 0 if none is overdue.",
            registry=registry,
        )

    def watch_due(self, *, jobs: Callable[[], int], overdue: Callable[[], float]) -> None:
        """Ask these at each scrape: how many jobs are due, and for how long the oldest is."""
        self._due.set_function(jobs)
        self._overdue_seconds.set_function(overdue)

    def render(self) -> bytes:
        """Return the exposition text of all metrics."""
        return generate_latest(self.registry)
