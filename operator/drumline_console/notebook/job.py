"""Represent one job in a notebook: its last known state, and the actions on it.

Properties never read the cluster. `refresh` does, and so do `wait`, `stop` and `resume`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, Self

from drumline.kube import errors, reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.kinds import TRAINING_JOBS
from drumline.overview.rows import JobRow
from drumline_cli.cluster_access import cluster_client, missing_job, refusal
from drumline_cli.errors import NotAnswered
from drumline_cli.jobs.follow import follow_job, read_job
from drumline_cli.jobs.log_selection import selection_of
from drumline_cli.jobs.written import written_lines
from drumline_cli.report import from_cluster
from drumline_cli.report.builder import build_report
from drumline_cli.suspension import write_suspend
from drumline_console.notebook.access import NotebookAccess, SeenJob
from drumline_console.notebook.views import JobLog, ReportView, job_card, job_text, row_values

_OVER: Final = frozenset({"Succeeded", "Failed"})
_PAUSE_SECONDS: Final = 1.0


class FinishedSteps(NamedTuple):
    """Number of optimizer steps. None: unknown."""

    done: int | None
    total: int | None


class NotebookJob:
    """A TrainingJob.

    Args:
        access: the cluster.
        seen: the job as it was just read.
    """

    def __init__(self, access: NotebookAccess, seen: SeenJob) -> None:
        self.name = seen.row.name
        self._access = access
        # The state of the last read. Properties of a cell must not change between two lines.
        self._seen = seen

    @property
    def row(self) -> JobRow:
        """Return all known fields of the job."""
        return self._seen.row

    @property
    def phase(self) -> str:
        """Return the phase of the job in one word."""
        return self.row.phase

    @property
    def position(self) -> int | None:
        """Return the position among the pending jobs of the queue. 1 is next."""
        return self.row.position

    @property
    def eta(self) -> datetime | None:
        """Return the expected start of a pending job or end of a running job. None: unknown."""
        # A pending job has a position and a start. A running job has an end.
        at = self.row.expected_start if self.row.position else self.row.expected_end
        return None if at is None else datetime.fromtimestamp(at, tz=UTC)

    @property
    def steps(self) -> FinishedSteps:
        """Return the number of finished and of all optimizer steps."""
        return FinishedSteps(done=self.row.step, total=self.row.total_steps)

    @property
    def loss(self) -> float | None:
        """Return the training loss as last reported, or None."""
        try:
            # The loss is text in the status, and empty text means that none was reported.
            return float(self.row.loss)
        except ValueError:
            return None

    @property
    def is_over(self) -> bool:
        """Return whether the job has succeeded or failed permanently."""
        return self.row.phase in _OVER

    def rows(self) -> list[dict[str, Any]]:
        """Return the known fields as plain values, in one row."""
        return [row_values(self.row)]

    def refresh(self) -> Self:
        """Read the job again.

        Raises:
            NotAnswered: the job was deleted or cannot be read.
        """
        self._seen = self._access.job(self.name)
        return self

    def report(self) -> ReportView:
        """Return the current report of the job.

        Raises:
            NotAnswered: the job was deleted or cannot be read.
        """
        access = self._access
        # A report needs events too, so it is read from the cluster and not from the row.
        read = from_cluster.read(access.credentials, job=self.name, namespace=access.namespace)
        return ReportView(report=build_report(access.loop.run(read)))

    def wait(self, *, timeout_seconds: float | None = None) -> Self:
        """Return when the job has succeeded or failed.

        An interrupt (Ctrl-C, or the notebook's stop button) also returns, and the job continues.
        `is_over` distinguishes the two.

        Args:
            timeout_seconds: maximum time. None: no limit.

        Raises:
            TimeoutError: the job has not ended in time.
            NotAnswered: the job was deleted or cannot be read.
        """
        try:
            phase = self._access.loop.run(self._end(timeout_seconds))
        # The stop button of a notebook raises KeyboardInterrupt. The job must not end with it.
        except KeyboardInterrupt:
            self._say_it_goes_on()
            return self
        # Read once more, so that all properties show the end.
        self.refresh()
        if phase not in _OVER:
            raise TimeoutError(f"{self!r} after {timeout_seconds} seconds")
        return self

    def logs(self, *, follow: bool = False) -> JobLog:
        """Return the logs of its pods so far, in order of time.

        Args:
            follow: print lines as they are written, until the job ends or an interrupt.

        Raises:
            NotAnswered: the job was deleted, or its pods cannot be read.
        """
        if follow:
            self._follow()
        return self._access.loop.run(self._written())

    def stop(self) -> Self:
        """Let the job save and release its GPUs. `resume` queues it again.

        Raises:
            NotAnswered: the job was deleted, or you may not change it.
        """
        return self._suspend(suspend=True)

    def resume(self) -> Self:
        """Queue a stopped job again.

        Raises:
            NotAnswered: the job was deleted, or you may not change it.
        """
        return self._suspend(suspend=False)

    def delete(self) -> None:
        """Delete exactly this job. Its pods stop within their grace period.

        Raises:
            NotAnswered: the job was deleted, or you may not delete it.
        """
        namespace, uid = self._access.namespace, self._seen.uid

        async def delete(client: KubeClient) -> None:
            # The uid protects a newer job of the same name.
            await writes.delete(client, TRAINING_JOBS, name=self.name, uid=uid, namespace=namespace)

        self._access.loop.run(self._access.change(self.name, delete, verb="delete"))

    def __repr__(self) -> str:
        return job_text(self.row, now=self._seen.as_of)

    def _repr_html_(self) -> str:
        return job_card(self.row, as_of=self._seen.as_of, remarks=self._seen.remarks)

    def _suspend(self, *, suspend: bool) -> Self:
        namespace, verb = self._access.namespace, "stop" if suspend else "resume"

        async def patch(client: KubeClient) -> None:
            await write_suspend(client, name=self.name, namespace=namespace, suspend=suspend)

        self._access.loop.run(self._access.change(self.name, patch, verb=verb))
        return self.refresh()

    def _say_it_goes_on(self) -> None:
        sys.stdout.write(f"{self.name} continues in the background; its stop() releases its GPUs\n")

    async def _end(self, timeout_seconds: float | None) -> str:
        """Return the phase after the end of the job or of the time."""
        clock = asyncio.get_running_loop().time
        # The time of the last answer bounds how long an unavailable server is tolerated.
        begun = answered = clock()
        async with cluster_client(self._access.credentials) as client:
            while True:
                # One client for the whole wait keeps the connection open.
                try:
                    phase = await self._phase(client)
                    answered = clock()
                except errors.KubeError as error:
                    patient = clock() - answered <= self._access.patience_seconds
                    # An error that a retry cannot solve ends the wait at once.
                    if not (error.retryable and patient):
                        raise self._refused(error) from None
                    phase = ""
                left = None if timeout_seconds is None else begun + timeout_seconds - clock()
                # The last phase is returned even after the time limit, so the caller can tell both
                # cases.
                if phase in _OVER or (left is not None and left <= 0):
                    return phase
                # The pause never exceeds the remaining time.
                await asyncio.sleep(_PAUSE_SECONDS if left is None else min(_PAUSE_SECONDS, left))

    async def _phase(self, client: KubeClient) -> str:
        namespace = self._access.namespace
        raw = await reads.get_document(client, TRAINING_JOBS, name=self.name, namespace=namespace)
        status: dict[str, Any] = raw.get("status") or {}
        return str(status.get("phase") or "")

    def _refused(self, error: errors.KubeError) -> NotAnswered:
        namespace = self._access.namespace
        if isinstance(error, errors.NotFound):
            return NotAnswered(missing_job(error, job=self.name, namespace=namespace))
        return NotAnswered(refusal(error, what=f"trainingjob {namespace}/{self.name}"))

    async def _written(self) -> JobLog:
        namespace = self._access.namespace
        async with cluster_client(self._access.credentials) as client:
            # The job is read first: its uid selects the Pods.
            raw = await read_job(client, job=self.name, namespace=namespace)
            now = time.time()
            everything = selection_of(raw, rank=None, around=None, seconds=0.0, now=now)
            uid = str(raw["metadata"]["uid"])
            lines = await written_lines(client, everything, uid=uid, namespace=namespace)
        return JobLog(lines=lines, as_of=now)

    def _follow(self) -> None:
        """Print lines in this thread, because a notebook shows only its own output."""
        # A queue connects the loop's thread with this one.
        lines: SimpleQueue[str | None] = SimpleQueue()

        async def follow() -> None:
            try:
                async with cluster_client(self._access.credentials) as client:
                    await follow_job(
                        client, job=self.name, namespace=self._access.namespace, say=lines.put
                    )
            finally:
                # None marks the end, also after an error. Otherwise this thread would wait forever.
                lines.put(None)

        try:
            with self._access.loop.started(follow()) as result:
                for line in iter(lines.get, None):
                    sys.stdout.write(f"{line}\n")
                # Raises the error of the coroutine, if it failed.
                result.result()
        except KeyboardInterrupt:
            self._say_it_goes_on()
