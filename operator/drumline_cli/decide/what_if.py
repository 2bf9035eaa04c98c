"""Compute what one cycle would decide after a change: a quota, a job, a new job. Pure.

The question changes the objects, and the operator's own cycle answers: once for the cluster as it
is, once for the changed one. What differs between the two is the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from drumline_api.base import GROUP, VERSION
from drumline_api.trainingjob import TrainingJob
from drumline_api.trainingqueue import TrainingQueue
from drumline_cli.decide import cluster
from drumline_cli.decide.cluster import ClusterInput
from drumline_cli.decide.cycle import decided, fault_remark
from drumline_cli.decide.job_decisions import JobDecision
from drumline_cli.errors import BadInput
from drumline_cli.manifests import ManifestDocument
from drumline_scheduler.forecast.expected_starts import KnownFutures
from drumline_scheduler.model import Policy

# The invented job needs a name that is valid and easy to recognize.
NEW_JOB: Final = "what-if"
SAME_SECONDS: Final = 60.0
"""Expected starts that differ by less are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreQuota:
    """A queue with another quota in a pool."""

    queue: str
    pool: str
    gpus: int
    """More than it has; negative: fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherSize:
    """A change of a job's nodes or priority. None: unchanged.

    A running job is treated as if it were stopped and queued again.
    """

    job: str
    """`namespace/name`."""
    nodes: int | None = None
    priority: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """Submit an additional job."""

    queue: str
    nodes: int
    gpus_per_node: int
    priority: str | None = None


Change = MoreQuota | OtherSize | NewJob


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedDecision:
    """A job that the change concerns.

    Attributes:
        job: `namespace/name`.
        now: decision without the change. None: the job continues, or does not exist.
        then: decision with the change. None: the job would continue.
        asked: whether the question is about this job.
    """

    job: str
    now: JobDecision | None
    then: JobDecision | None
    asked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfAnswer:
    """Differences, with the job of the question first."""

    changed: tuple[ChangedDecision, ...]
    unchanged: int
    """Number of jobs whose decision stays the same."""
    as_of: float
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The unchanged cluster and its decisions. Every answer compares with them."""

    manifests: Sequence[ManifestDocument]
    seen: ClusterInput
    decisions: Mapping[str, JobDecision]
    policy: Policy
    futures: KnownFutures
    """The simulated futures. A question that does not change them uses them again."""


def baseline(manifests: Sequence[ManifestDocument], *, policy: Policy) -> Baseline:
    """Return the current decisions of the cycle, by `namespace/name`.

    Raises:
        BadInput: the objects do not fit together.
    """
    # The baseline is computed once, and answers to several questions share it.
    seen, futures = cluster.read(manifests, policy=policy), KnownFutures()
    decisions = _by_job(seen, policy, futures=futures, faults=[])
    return Baseline(
        manifests=manifests, seen=seen, decisions=decisions, policy=policy, futures=futures
    )


def answer(known: Baseline, change: Change) -> WhatIfAnswer:
    """Return the decisions that the change affects.

    Raises:
        BadInput: what would be different is not there, or would not be accepted.
    """
    # Phase 1: decide the changed cluster with the same policy.
    different = changed(known.manifests, change)
    after = cluster.read(different, policy=known.policy, earlier=known.seen.known_jobs)
    # Problems of the baseline are not caused by the change, so only new ones count.
    problem = next((text for text in after.unreadable if text not in known.seen.unreadable), None)
    if problem is not None:
        raise BadInput(problem)
    # Phase 2: compare both decisions by job. The job of the question comes first.
    faults: list[str] = []
    now = known.decisions
    then = _by_job(after, known.policy, futures=known.futures, faults=faults)
    asked = _asked(different, change)
    jobs: list[str] = [asked] if asked else []
    jobs += [*then, *now]
    rows = [
        ChangedDecision(job=job, now=now.get(job), then=then.get(job), asked=job == asked)
        for job in dict.fromkeys(jobs)
    ]
    # Equal decisions are counted but not listed.
    kept = [row for row in rows if row.asked or not _same(row.now, row.then)]
    fresh = (remark for remark in after.remarks if remark not in known.seen.remarks)
    return WhatIfAnswer(
        changed=tuple(kept),
        unchanged=len(rows) - len(kept),
        as_of=after.as_of,
        remarks=(*fresh, *faults),
    )


def _by_job(
    seen: ClusterInput, policy: Policy, *, futures: KnownFutures, faults: list[str]
) -> Mapping[str, JobDecision]:
    rows = decided(
        seen,
        policy,
        forecast=True,
        futures=futures,
        on_fault=lambda fault: faults.append(fault_remark(fault)),
    )
    # Surplus gangs are part of their job, so a second row would look like a duplicate.
    return {row.job: row for row in rows if not row.surplus}


def changed(manifests: Sequence[ManifestDocument], change: Change) -> list[ManifestDocument]:
    """Return the cluster with the change.

    Raises:
        BadInput: what would be different is not there.
    """
    match change:
        case MoreQuota():
            return [_more_quota(each, change) for each in _with(manifests, change)]
        case OtherSize():
            return [_other_size(each, change) for each in _with(manifests, change)]
        case NewJob():
            # The queue proves that it exists. Its document lends the file and the time.
            queue = next(each for each in _with(manifests, change) if _is_queue(each, change.queue))
            return [*manifests, replace(queue, raw=_new_job(queue, change))]


def _asked(manifests: Sequence[ManifestDocument], change: Change) -> str | None:
    match change:
        case MoreQuota():
            return None
        case OtherSize():
            return change.job
        case NewJob():
            return _key(manifests[-1])


def _with(manifests: Sequence[ManifestDocument], change: Change) -> Sequence[ManifestDocument]:
    """Return the changed objects, after checking that the object to change exists."""
    match change:
        case OtherSize(job=job):
            there = any(each.kind == TrainingJob.KIND and _key(each) == job for each in manifests)
            what = f"trainingjob {job}"
        case MoreQuota(queue=queue) | NewJob(queue=queue):
            there = any(_is_queue(each, queue) for each in manifests)
            what = f"trainingqueue {queue}"
    if not there:
        raise BadInput(f"there is no {what}")
    return manifests


def _is_queue(manifest: ManifestDocument, name: str) -> bool:
    return manifest.kind == TrainingQueue.KIND and manifest.namespaced_name[1] == name


def _key(manifest: ManifestDocument) -> str:
    return "/".join(manifest.namespaced_name)


def _more_quota(manifest: ManifestDocument, change: MoreQuota) -> ManifestDocument:
    if not _is_queue(manifest, change.queue):
        return manifest
    # Copies: the baseline still uses the original objects.
    spec = _fields(manifest.raw, "spec")
    quotas = [dict(each) for each in cast("list[Mapping[str, Any]]", spec.get("quotas") or [])]
    quota = next((each for each in quotas if each.get("gpuPool") == change.pool), None)
    # A pool without a quota starts at zero.
    if quota is None:
        quota = {"gpuPool": change.pool, "nominalGpus": 0}
        quotas.append(quota)
    nominal = int(quota.get("nominalGpus") or 0)
    # A percentage becomes the number of GPUs that the operator has counted.
    if quota.pop("nominalPercent", None) is not None:
        usage = cast("list[Mapping[str, Any]]", _fields(manifest.raw, "status").get("usage") or [])
        counted = (each.get("nominalGpus") for each in usage if each.get("gpuPool") == change.pool)
        nominal = max(nominal, int(next(counted, None) or 0))
    # The CRD requires a quota of zero or more.
    quota["nominalGpus"] = max(0, nominal + change.gpus)
    return replace(manifest, raw={**manifest.raw, "spec": {**spec, "quotas": quotas}})


def _other_size(manifest: ManifestDocument, change: OtherSize) -> ManifestDocument:
    if manifest.kind != TrainingJob.KIND or _key(manifest) != change.job:
        return manifest
    # A suspended job would not be considered, and the question assumes that it starts.
    spec = {**_fields(manifest.raw, "spec"), "suspend": False}
    if change.nodes is not None:
        spec["nodes"] = change.nodes
        # minNodes above nodes is invalid, so it follows.
        if spec.get("minNodes"):
            spec["minNodes"] = min(int(spec["minNodes"]), change.nodes)
    if change.priority is not None:
        # An empty name means the default class, and null fields are dropped below.
        spec["priorityClassName"] = change.priority or None
    spec = {name: value for name, value in spec.items() if value is not None}
    status = _fields(manifest.raw, "status")
    # Only the queue time stays. The rest of the status belongs to a running placement.
    queued = {name: status[name] for name in ("queuedAt",) if name in status}
    return replace(manifest, raw={**manifest.raw, "spec": spec, "status": queued})


def _new_job(queue: ManifestDocument, change: NewJob) -> dict[str, Any]:
    # The job must be in a namespace that may use the queue.
    allowed = cast("list[str]", _fields(queue.raw, "spec").get("namespaces") or ["default"])
    spec: dict[str, Any] = {
        "queue": change.queue,
        "nodes": change.nodes,
        "gpusPerNode": change.gpus_per_node,
        # The decision does not depend on the image, but the API requires one.
        "template": {"image": NEW_JOB, "command": ["true"]},
    }
    if change.priority:
        spec["priorityClassName"] = change.priority
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": TrainingJob.KIND,
        "metadata": {"name": NEW_JOB, "namespace": allowed[0]},
        "spec": spec,
    }


def _fields(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    value: object = raw.get(name)
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, dict) else {}


def _same(now: JobDecision | None, then: JobDecision | None) -> bool:
    # A decision on only one side is always a difference.
    if now is None or then is None:
        return now is then
    alike = (now.verdict, now.reason, now.by, now.pods) == (
        then.verdict,
        then.reason,
        then.by,
        then.pods,
    )
    return alike and _near(now.expected_start, then.expected_start)


def _near(now: float | None, then: float | None) -> bool:
    if now is None or then is None:
        return now is then
    # Forecasts vary slightly with each cycle, so small differences would be noise.
    return abs(now - then) < SAME_SECONDS
