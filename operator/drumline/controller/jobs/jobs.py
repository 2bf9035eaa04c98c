"""The TrainingJobs: as the watch shows them, and with our own writes applied.

A write that the API server acknowledged is *assumed*. It is the job's version here until the watch
shows it or a later one (kube-scheduler's cache uses the same term). A write without acknowledgement
is never assumed.

A write whose answer was lost is *in doubt*. The job stays at the version that was read. The
resources that the write would take are kept free until a later version is known, or until the write
can no longer take effect.
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
from drumline.lifecycle.plan.acceptance import has_same_verdict, judge
from drumline_api.jobstatus import TrainingJobStatus

_SETTLED = (Schedulable, Refusal)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteInDoubt:
    """Writes of one job's status, of which at most one took effect.

    All of them are conditional on the version `read`. None can take effect once a later version is
    known.
    """

    read: Job
    """The job as it was read."""
    statuses: tuple[TrainingJobStatus, ...]
    """The statuses that were sent."""
    until: float
    """Time after which the API server has dropped the last write, on the writer's clock."""


class JobCache:
    """The newest version of every job. For one event loop.

    Args:
        changed: called with a job's version before and after every change.
        forgotten: called with namespace and uid when a job is deleted.
        hardware: returns the largest GPUs that a job may get, if its pools declare them.
        judge_later: accepts a job whose verdict will be passed to `settle`. None: judge at once.
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
        """Creation time of the job that came last."""
        self._last_arrival = 0
        """Number of this job among the jobs of the same second."""

    def on_job(self, old: TrainingJobView | None, new: TrainingJobView | None) -> str | None:
        """Process an event and return why the job cannot be read, if that is new.

        A spec is parsed and judged when it changes, not with each status. `new` is None if deleted.
        """
        if new is None:
            if old is not None:
                self._delete(f"{old.namespace}/{old.name}", old.uid)
            return None
        key = f"{new.namespace}/{new.name}"
        # The informer may skip the deletion of a job that was created again with the same name.
        shown = self._shown.get(key)
        if shown is not None and shown.uid != new.uid:
            self._delete(key, shown.uid)
            shown = None
        job = self._arrived(self._read(old, new, shown), shown)
        # Phase 2: store the version. Callers see one change, from the effective version before to
        # the effective one after, so an assumed version must be dropped in between.
        before = self.get(key)
        self._shown[key] = self._with_verdict(job, shown)
        assumed = self._assumed.get(new.uid)
        if assumed is not None and _at_least(new.resource_version, assumed.resource_version):
            del self._assumed[new.uid]
        self._pass_doubt(new.uid, new.resource_version)
        self._changed(before, self.get(key))
        # Report a refusal once, not with each status update.
        known = shown is not None and shown.verdict == job.verdict
        return job.verdict.message if isinstance(job.verdict, Refusal) and not known else None

    def adopt(self, job: Job) -> None:
        """Take a job that another cache has read and judged, as if its object had been read here.

        Raises:
            ValueError: a job of this name is known already.
        """
        if job.key in self._shown:
            raise ValueError(f"{job.key} is known already")
        job = self._shown[job.key] = self._arrived(job, None)
        self._changed(None, job)

    def settle(self, job: Job, verdict: Schedulable | Refusal) -> bool:
        """Store the verdict on this job's spec. Return False if the job has another spec now."""
        shown = self._shown.get(job.key)
        if shown is None or shown.spec is not job.spec:
            return False
        before, assumed = self.get(job.key), self._assumed.get(job.uid)
        self._shown[job.key] = replace(shown, verdict=verdict)
        if assumed is not None:
            self._assumed[job.uid] = replace(assumed, verdict=verdict)
        # A job that is refused keeps no other one waiting.
        if isinstance(shown.verdict, Refusal) or isinstance(verdict, Refusal):
            self._changed(before, self.get(job.key))
        # The pools may have changed while a thread judged the spec.
        same_verdict = verdict.hardware == self._hardware(shown)
        if self._judge_later is not None and not same_verdict and verdict.by_the_spec:
            self._judge_later(shown)  # its pools changed while it was judged
        return True

    def rejudge(self) -> None:
        """Judge the jobs again whose largest GPUs have changed with the pools. O(jobs).

        Until then a job keeps its verdict: a schedulable job stays schedulable.
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
        """Use a version that the API server acknowledged or showed, until the watch has it."""
        self._pass_doubt(job.uid, job.resource_version)
        shown = self._shown.get(job.key)
        if shown is None or shown.uid != job.uid:
            return
        # The watch may be faster than our own answer. A version that it showed already wins.
        if not _at_least(shown.resource_version, job.resource_version):
            self._changed(self.get(job.key), job)
            same_verdict = job.spec is shown.spec or has_same_verdict(job.spec, shown.spec)
            # The watch will show this spec too, and have it judged.
            verdict = shown.verdict if same_verdict else Unjudged()
            self._assumed[job.uid] = replace(job, verdict=verdict)

    def forget_assumed(self) -> None:
        """Drop all assumed versions, because a restored backup has undone our writes."""
        assumed, self._assumed = self._assumed, {}
        self._in_doubt.clear()
        for job in assumed.values():
            self._changed(job, self.get(job.key))

    def doubt(self, job: Job, status: TrainingJobStatus, *, until: float) -> WriteInDoubt:
        """Record that a write of this status may take effect until the given time.

        Args:
            job: the job with its present status.
            status: the status that may have been written.
            until: Unix time at which the API server must have dropped the write.
        """
        known = self._in_doubt.get(job.uid)
        # Writes onto one version exclude each other, so they share one doubt.
        same = known is not None and known.read.resource_version == job.resource_version
        before = known.statuses if known is not None and same else ()
        doubt = WriteInDoubt(read=job, statuses=(*before, status), until=until)
        self._in_doubt[job.uid] = doubt
        return doubt

    def end_doubt(self, doubt: WriteInDoubt) -> None:
        """Remove a doubt: none of its writes took effect, or their job is gone."""
        if self._in_doubt.get(doubt.read.uid) is doubt:
            del self._in_doubt[doubt.read.uid]

    def in_doubt(self) -> Collection[WriteInDoubt]:
        """Return the jobs with a write in doubt."""
        return self._in_doubt.values()

    def take_deleted(self, key: str) -> set[str]:
        """Remove and return the uids of the deleted jobs with this key."""
        return self._deleted.pop(key, set())

    def get(self, key: str) -> Job | None:
        """Return the newest version of the job `namespace/name`."""
        shown = self._shown.get(key)
        return None if shown is None else self._assumed.get(shown.uid, shown)

    def all(self) -> Iterable[Job]:
        """Return the newest version of every job."""
        return (self._assumed.get(job.uid, job) for job in self._shown.values())

    def _delete(self, key: str, uid: str) -> None:
        if key in self._shown and self._shown[key].uid == uid:
            # Handlers still find the job while they process its deletion.
            self._changed(self.get(key), None)
            del self._shown[key]
        self._assumed.pop(uid, None)
        self._in_doubt.pop(uid, None)
        self._deleted[key].add(uid)
        self._forgotten(key.partition("/")[0], uid)

    def _read(self, old: TrainingJobView | None, new: TrainingJobView, shown: Job | None) -> Job:
        """Parse a job. An unchanged spec and its verdict are reused.

        The generation alone does not identify a spec, because a cluster restored from a backup
        counts from a lower generation.
        """
        if shown is not None and old is not None and _same_spec(old, new) and not shown.unreadable:
            return with_status_of(new, shown)
        return readable_job_of(new, known=shown, specs=self._specs)

    def _arrived(self, job: Job, shown: Job | None) -> Job:
        """Assign numbers to jobs of the same second, in the order of arrival.

        Creation times have whole seconds. The number makes the queue's order stable.
        """
        if shown is not None:
            arrival = shown.arrival
        elif job.created_at == self._last_second:
            self._last_arrival += 1
            arrival = self._last_arrival
        else:
            self._last_second, self._last_arrival = job.created_at, 0
            arrival = 0
        return replace(job, arrival=arrival) if arrival != job.arrival else job

    def _with_verdict(self, job: Job, shown: Job | None) -> Job:
        """Add a verdict: the earlier one if nothing that it depends on changed, or a new one."""
        if job.verdict is not None:
            return job
        readable = shown is not None and not shown.unreadable
        if shown is not None and readable and has_same_verdict(shown.spec, job.spec):
            return replace(job, verdict=shown.verdict)
        # Only specs with a trainer take milliseconds to judge. All others are judged here.
        if self._judge_later is None or job.spec.trainer is None:
            return replace(job, verdict=judge(job.spec, self._hardware(job)))
        unjudged = replace(job, verdict=Unjudged())
        self._judge_later(unjudged)
        return unjudged

    def _pass_doubt(self, uid: str, version: str) -> None:
        """Remove the doubt of a job if this version is later than the one it was based on."""
        doubt = self._in_doubt.get(uid)
        if doubt is not None and not _at_least(doubt.read.resource_version, version):
            del self._in_doubt[uid]


def _same_spec(old: TrainingJobView, new: TrainingJobView) -> bool:
    before = (old.uid, old.generation, old.spec_json, old.dropped_overrides_bytes)
    return before == (new.uid, new.generation, new.spec_json, new.dropped_overrides_bytes)


def _at_least(shown: str, written: str) -> bool:
    """Return whether a version is this write or a later one.

    Versions are comparable since Kubernetes 1.35. Others compare only as equal.
    """
    if shown.isdecimal() and written.isdecimal():
        return int(shown) >= int(written)
    return shown == written
