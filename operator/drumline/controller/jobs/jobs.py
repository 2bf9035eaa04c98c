"""The TrainingJobs: as the watch shows them, and as our own writes left them.

A write of ours that the API server acknowledged is *assumed*: it is the job's version here until
the watch shows it or a later one (kube-scheduler's cache calls this the same). Nothing is assumed
that was not acknowledged.

A write whose answer was lost is *in doubt*: the job stays at the version that was read, and what
the write would have taken is kept free for it until a later version is known, or until the write
can take effect no more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from drumline.controller.jobs.conversion import readable_job_of, with_status_of
from drumline.controller.jobs.shared_specs import SharedSpecs
from drumline.kube.views import TrainingJobView
from drumline.lifecycle.model.hardware import PoolHardware
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.verdict import Refusal, Schedulable, Unjudged
from drumline.lifecycle.plan.acceptance import is_judged_alike, judge
from drumline_api.jobstatus import TrainingJobStatus

_SETTLED = (Schedulable, Refusal)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteInDoubt:
    """Writes of one job's status that may have been carried out: at most one of them was.

    All of them are conditional on the version `read`, so none can take effect any more once a later
    version is known.
    """

    read: Job
    """The job as it was read."""
    statuses: tuple[TrainingJobStatus, ...]
    """What was written."""
    until: float
    """Then the API server has dropped the last of them, on the clock of the writer."""


class JobCache:
    """The newest version known of every job. For one event loop.

    Args:
        changed: called with a job's version before and after every change.
        forgotten: called with namespace and uid when a job is gone.
        hardware: the largest GPUs that a job may get, as far as its pools say it.
        judge_later: takes a job whose verdict is to be given to `settle`; None: judged at once.
    """

    def __init__(
        self,
        *,
        changed: Callable[[Job | None, Job | None], None],
        forgotten: Callable[[str, str], None],
        hardware: Callable[[Job], PoolHardware | None] = lambda _: None,
        judge_later: Callable[[Job], None] | None = None,
    ) -> None:
        self._judge_later = judge_later
        self._hardware = hardware
        self._changed = changed
        self._forgotten = forgotten
        self._specs = SharedSpecs()
        self._shown: dict[str, Job] = {}
        self._assumed: dict[str, Job] = {}
        self._in_doubt: dict[str, WriteInDoubt] = {}
        self._deleted: dict[str, set[str]] = defaultdict(set)
        self._last_second = 0.0
        """When the job that came last was created."""
        self._last_arrival = 0
        """Of that job."""

    def on_job(self, old: TrainingJobView | None, new: TrainingJobView | None) -> str | None:
        """Take in an event; returns why the job cannot be read, if that is news.

        A spec is read and judged when it changes, and not with each status. None as `new`: deleted.
        """
        if new is None:
            if old is not None:
                self._delete(f"{old.namespace}/{old.name}", old.uid)
            return None
        key = f"{new.namespace}/{new.name}"
        shown = self._shown.get(key)
        if shown is not None and shown.uid != new.uid:
            self._delete(key, shown.uid)
            shown = None
        job = self._arrived(self._read(old, new, shown), shown)
        before = self.get(key)
        self._shown[key] = self._with_verdict(job, shown)
        assumed = self._assumed.get(new.uid)
        if assumed is not None and _at_least(new.resource_version, assumed.resource_version):
            del self._assumed[new.uid]
        self._pass_doubt(new.uid, new.resource_version)
        self._changed(before, self.get(key))
        known = shown is not None and shown.verdict == job.verdict
        return job.verdict.message if isinstance(job.verdict, Refusal) and not known else None

    def settle(self, job: Job, verdict: Schedulable | Refusal) -> bool:
        """Keep the verdict on this job's spec; False where the job has another spec by now."""
        shown = self._shown.get(job.key)
        if shown is None or shown.spec is not job.spec:
            return False
        self._shown[job.key] = replace(shown, verdict=verdict)
        assumed = self._assumed.get(job.uid)
        if assumed is not None:
            self._assumed[job.uid] = replace(assumed, verdict=verdict)
        alike = verdict.hardware == self._hardware(shown)
        if self._judge_later is not None and not alike and verdict.by_the_spec:
            self._judge_later(shown)  # its pools changed while it was judged
        return True

    def judge_again(self) -> None:
        """Pools have changed: judge the jobs whose largest GPUs are others now. O(jobs).

        Until then the verdict that they have counts: what can be scheduled goes on to be.
        """
        for job in list(self._shown.values()):
            if job.spec.trainer is None or job.finished or job.unreadable:
                continue
            hardware = self._hardware(job)
            if not isinstance(job.verdict, _SETTLED) or job.verdict.hardware == hardware:
                continue
            if self._judge_later is None:
                self.settle(job, judge(job.spec, hardware))
            else:
                self._judge_later(job)

    def assume(self, job: Job) -> None:
        """The API server acknowledged or showed this version: it counts until the watch has it."""
        self._pass_doubt(job.uid, job.resource_version)
        shown = self._shown.get(job.key)
        if shown is None or shown.uid != job.uid:
            return
        if not _at_least(shown.resource_version, job.resource_version):
            self._changed(self.get(job.key), job)
            alike = job.spec is shown.spec or is_judged_alike(job.spec, shown.spec)
            verdict = shown.verdict if alike else Unjudged()  # the watch will show this spec too
            self._assumed[job.uid] = replace(job, verdict=verdict)

    def forget_assumed(self) -> None:
        """The cluster was restored from a backup: our writes since then are undone."""
        assumed, self._assumed = self._assumed, {}
        self._in_doubt.clear()
        for job in assumed.values():
            self._changed(job, self.get(job.key))

    def doubt(self, job: Job, status: TrainingJobStatus, *, until: float) -> WriteInDoubt:
        """A write of this status onto this version may have been carried out; until then it may."""
        known = self._in_doubt.get(job.uid)
        same = known is not None and known.read.resource_version == job.resource_version
        before = known.statuses if known is not None and same else ()
        doubt = WriteInDoubt(read=job, statuses=(*before, status), until=until)
        self._in_doubt[job.uid] = doubt
        return doubt

    def end_doubt(self, doubt: WriteInDoubt) -> None:
        """None of these writes was carried out, or their job is gone."""
        if self._in_doubt.get(doubt.read.uid) is doubt:
            del self._in_doubt[doubt.read.uid]

    def in_doubt(self) -> Collection[WriteInDoubt]:
        """The jobs of which a write is in doubt."""
        return self._in_doubt.values()

    def take_deleted(self, key: str) -> set[str]:
        """The uids of the deleted jobs with this key; each is returned once."""
        return self._deleted.pop(key, set())

    def get(self, key: str) -> Job | None:
        """The newest version known of the job `namespace/name`."""
        shown = self._shown.get(key)
        return None if shown is None else self._assumed.get(shown.uid, shown)

    def all(self) -> Iterable[Job]:
        """The newest version known of every job."""
        return (self._assumed.get(job.uid, job) for job in self._shown.values())

    def _delete(self, key: str, uid: str) -> None:
        if key in self._shown and self._shown[key].uid == uid:
            self._changed(self.get(key), None)
            del self._shown[key]
        self._assumed.pop(uid, None)
        self._in_doubt.pop(uid, None)
        self._deleted[key].add(uid)
        self._forgotten(key.partition("/")[0], uid)

    def _read(self, old: TrainingJobView | None, new: TrainingJobView, shown: Job | None) -> Job:
        """The job; its spec and verdict are kept where the spec is the same.

        The generation alone does not say so: a cluster restored from a backup counts from a lower
        one.
        """
        if shown is not None and old is not None and _same_spec(old, new) and not shown.unreadable:
            return with_status_of(new, shown)
        return readable_job_of(new, known=shown, specs=self._specs)

    def _arrived(self, job: Job, shown: Job | None) -> Job:
        """The job with its place among those that were created in the same second."""
        if shown is not None:
            arrival = shown.arrival
        elif job.created_at == self._last_second:
            self._last_arrival += 1
            arrival = self._last_arrival
        else:
            self._last_second, self._last_arrival = job.created_at, 0
            arrival = 0
        return replace(job, arrival=arrival) if arrival else job

    def _with_verdict(self, job: Job, shown: Job | None) -> Job:
        """The job with a verdict: that of its earlier version if nothing it depends on changed."""
        if job.verdict is not None:
            return job
        readable = shown is not None and not shown.unreadable
        if shown is not None and readable and is_judged_alike(shown.spec, job.spec):
            return replace(job, verdict=shown.verdict)
        if self._judge_later is None or job.spec.trainer is None:
            return replace(job, verdict=judge(job.spec, self._hardware(job)))
        unjudged = replace(job, verdict=Unjudged())
        self._judge_later(unjudged)
        return unjudged

    def _pass_doubt(self, uid: str, version: str) -> None:
        """A version of this job is known: writes onto an earlier one are decided."""
        doubt = self._in_doubt.get(uid)
        if doubt is not None and not _at_least(doubt.read.resource_version, version):
            del self._in_doubt[uid]


def _same_spec(old: TrainingJobView, new: TrainingJobView) -> bool:
    before = (old.uid, old.generation, old.spec_json, old.dropped_overrides_bytes)
    return before == (new.uid, new.generation, new.spec_json, new.dropped_overrides_bytes)


def _at_least(shown: str, written: str) -> bool:
    """Whether a shown version is this write or a later one (comparable since Kubernetes 1.35)."""
    if shown.isdecimal() and written.isdecimal():
        return int(shown) >= int(written)
    return shown == written
