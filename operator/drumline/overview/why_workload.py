"""Explain the state of a pod, Job or other workload: its place in line, and who pays for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from drumline.overview.advice import advice_for
from drumline.overview.objects import ClusterObjects
from drumline.overview.queues import queue_rows, whole_line
from drumline.overview.rows import LineRow, QueueRow, WorkloadCard
from drumline.overview.why import SHOWN, WantedHolders, holders_of
from drumline.overview.workload_objects import (
    ADMITTED,
    POD_GROUP,
    QUEUE,
    PodObject,
    WorkloadObject,
    is_admitted,
)
from drumline.overview.workloads import (
    WorkloadUse,
    gpus_of,
    payer,
    workload_of,
    workload_uses,
    worth_of_resources,
)
from drumline_contract import plain

WAITING: Final = "Waiting"
HELD: Final = (
    "its owner suspended it; it waits for its queue again when the owner removes the annotation"
    f" {ADMITTED}"
)
FARTHER: Final = (
    "the status of its queue lists only the first pending workloads, and this one is not among"
    " them; kubectl describe may show more"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    state: str
    message: str = ""


def workload_card(
    cluster: ClusterObjects, asked: PodObject | WorkloadObject, *, plural: str
) -> WorkloadCard:
    """Return the card of an object that is not a TrainingJob.

    Args:
        cluster: the known objects, including the object's pods.
        asked: the object.
        plural: plural of its kind.
    """
    metadata = asked.metadata
    name = f"{metadata.namespace}/{plural}/{metadata.name}"
    queue = payer(cluster.queues, metadata.namespace, named=metadata.label(QUEUE))
    standing = _standing(asked, queue=queue)
    row = next(iter(queue_rows(cluster, only=queue)), None) if queue else None
    line = whole_line(row) if row is not None else ()
    group = metadata.label(POD_GROUP)
    key = plain(f"{metadata.namespace}/pods/{group}" if plural == "pods" and group else name)
    place = next((each for each in line if each.name == key), None)
    waits = standing.state == WAITING
    if not waits:
        place = None
    use = _use_of(cluster, asked, name=name)
    before = line[: line.index(place)] if place is not None and place.position else ()
    quotas = row.quotas if row is not None else ()
    return WorkloadCard(
        workload=plain(name),
        queue=plain(queue),
        state=standing.state,
        message=place.message if place is not None else standing.message,
        reason=place.reason if place is not None else "",
        gpus=_gpus(cluster, asked, place=place, use=use, state=standing.state),
        pods=use.pods if use is not None else 0,
        position=place.position if place is not None else None,
        waiting=_waiting(row) if waits else 0,
        queued_at=place.queued_at if place is not None else None,
        expected_start=place.expected_start if place is not None else None,
        expected_start_by=place.expected_start_by if place is not None else None,
        since=use.since if use is not None else None,
        ahead=before[:SHOWN],
        gpus_ahead=sum(each.gpus for each in before),
        quotas=quotas,
        budget=row.budget if row is not None else None,
        holders=holders_of(cluster, WantedHolders(pools={each.pool for each in quotas}))
        if waits
        else (),
        advice=advice_for(place.reason, suspended=True) if place is not None else (),
    )


def _standing(asked: PodObject | WorkloadObject, *, queue: str) -> _Standing:
    if asked.has_ended:
        return _Standing(state="Ended", message="it has ended, so no queue pays for it")
    if not queue:
        named = asked.metadata.label(QUEUE)
        why = f"names queue {named}, which is closed to it" if named else f"has no label {QUEUE}"
        return _Standing(
            state="NotCharged", message=f"it {why}, and no queue pays for unclaimed pods"
        )
    return _of_pod(asked) if isinstance(asked, PodObject) else _of_workload(asked)


def _of_pod(pod: PodObject) -> _Standing:
    if pod.is_gated and not is_admitted(pod):
        return _Standing(state=WAITING, message=FARTHER)
    if pod.is_accepted:
        return _Standing(state="Charged", message="its GPUs count as used quota of the queue")
    if is_admitted(pod):
        return _Standing(
            state="Admitted", message="the queue pays for it, and kube-scheduler binds it"
        )
    return _Standing(
        state="NotCharged", message="the queue pays for it after a kubelet has accepted it"
    )


def _of_workload(workload: WorkloadObject) -> _Standing:
    if workload.spec.is_suspended:
        if is_admitted(workload):
            return _Standing(state="Held", message=HELD)
        if workload.metadata.label(QUEUE):
            return _Standing(state=WAITING, message=FARTHER)
        return _Standing(state="NotCharged", message=f"it is suspended, and has no label {QUEUE}")
    if is_admitted(workload):
        return _Standing(state="Admitted", message="the queue pays for all its pods until it ends")
    return _Standing(state="Charged", message="the queue pays for each of its pods while it runs")


def _use_of(
    cluster: ClusterObjects, asked: PodObject | WorkloadObject, *, name: str
) -> WorkloadUse | None:
    """Return the GPUs that it holds. For a pod only its own."""
    if isinstance(asked, PodObject):
        name = workload_of(asked)
        pods = tuple(pod for pod in cluster.pods if pod.metadata.uid == asked.metadata.uid)
        cluster = ClusterObjects(as_of=cluster.as_of, pools=cluster.pools, pods=pods)
    return next((use for use in workload_uses(cluster) if use.workload == plain(name)), None)


def _gpus(
    cluster: ClusterObjects,
    asked: PodObject | WorkloadObject,
    *,
    place: LineRow | None,
    use: WorkloadUse | None,
    state: str,
) -> float:
    if place is not None:
        return place.gpus
    if isinstance(asked, PodObject) and state != "Ended":
        return gpus_of(asked, worth_of_resources(cluster.pools))
    return use.gpus if use is not None else 0


def _waiting(row: QueueRow | None) -> int:
    return 0 if row is None else len(row.waiting) + row.workloads
