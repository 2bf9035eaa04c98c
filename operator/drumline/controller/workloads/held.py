"""Capacity that a queue pays for beside the members of its jobs.

Pods that remain of a job, foreign pods that name the queue, and writes whose answer was lost: each
becomes an `Admitted` gang of its own, so that nodes and quota count it like any other gang. Its uid
is that of the job, or of the pod, with a suffix: the job itself may wait. It is no victim, but for
a foreign pod whose queue gives back what it borrows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import members_of, nodes_by_pool
from drumline_api.jobstatus import TrainingJobStatus
from drumline_scheduler.model import Admitted, Gang
from drumline_scheduler.resources import Resources

FOREIGN_USER: Final = "foreign pods"
"""Whose foreign pods are: no job has such a user, a name without spaces."""

MAX_HANGING: Final = 3
"""So many pods of a gang are named that should have left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Which job, or foreign pod, holds capacity, and which queue and user pay for it."""

    key: str
    """`namespace/name` of the job, `namespace/pods/name` of the pod."""
    uid: str
    queue: str
    user: str = ""
    is_foreign: bool = False
    """Whether it is a pod that is no job's."""
    gives_back: bool = False
    """Whether it may be evicted as far as its queue has borrowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignPod:
    """A foreign pod, by its identity in the API."""

    namespace: str
    name: str
    uid: str


_FOREIGN: Final = "pods"
"""Marks key and uid of a foreign pod: no job has such ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingPod:
    """A pod that still runs although its job gave up its place there, or a foreign pod."""

    name: str
    node: str
    pool: str
    requests: Resources
    leaving: bool
    """Whether it is being deleted; otherwise it may stay as long as it likes."""
    ends_at: float | None = None
    """When it is ended at the latest; None: nobody knows."""
    hanging: str = ""
    """If it should have left a while ago: its name, its node and what holds it."""


def account_of(job: Job) -> Account:
    """The account of a job."""
    return Account(key=job.key, uid=job.uid, queue=job.spec.queue, user=job.spec.user or "")


def account_of_foreign(pod: ForeignPod, *, queue: str, gives_back: bool) -> Account:
    """The account of a foreign pod that this queue pays for."""
    return Account(
        key=f"{pod.namespace}/{_FOREIGN}/{pod.name}",
        uid=f"{_FOREIGN}/{pod.uid}",
        queue=queue,
        user=FOREIGN_USER,
        is_foreign=True,
        gives_back=gives_back,
    )


def foreign_pod_of(key: str, uid: str) -> ForeignPod | None:
    """The foreign pod behind a gang's key and uid; None: it is a job's.

    Its account writes team/pods/chat-1 and pods/UID, its gang the same and pods/UID/pods-0.
    """
    mark, _, rest = uid.partition("/")
    if mark != _FOREIGN:
        return None
    namespace, _, name = key.split("/", 2)
    return ForeignPod(namespace=namespace, name=name, uid=rest.partition("/")[0])


def held_by_pods(account: Account, pods: Iterable[RemainingPod]) -> list[Admitted]:
    """One gang for each pool and pod shape: what these pods hold, until they are gone."""
    alike: dict[tuple[str, bool, Resources, float | None, bool], list[RemainingPod]] = {}
    for pod in sorted(pods, key=lambda pod: pod.name):
        key = (pod.pool, pod.leaving, pod.requests, pod.ends_at, bool(pod.hanging))
        alike.setdefault(key, []).append(pod)
    return [
        Admitted(
            gang=replace(
                _gang(account, suffix=f"pods-{number}", pods=len(own), per_pod=requests),
                hanging=tuple(pod.hanging for pod in own[:MAX_HANGING] if pod.hanging),
            ),
            pool=pool,
            assignment=tuple(pod.node for pod in own),
            leaving=leaving,
            preemptible=account.gives_back and not hangs,
            ends_at=ends_at,
            is_residual=True,
            is_foreign=account.is_foreign,
        )
        for number, ((pool, leaving, requests, ends_at, hangs), own) in enumerate(alike.items())
    ]


def held_by_lost_writes(
    account: Account,
    *,
    per_pod: Resources,
    places: Sequence[str],
    statuses: Iterable[TrainingJobStatus],
) -> list[Admitted]:
    """What writes whose answer was lost may have taken beside the places that the job holds.

    At most one of the writes took effect. On each node, the most that any of them takes is held.

    Args:
        account: what pays for the job.
        per_pod: requests of each of its pods.
        places: nodes of the places that it holds as it was read.
        statuses: what was written.
    """
    most: dict[str, Counter[str]] = {}
    for status in statuses:
        more = Counter(member.node for member in members_of(status)) - Counter(places)
        for pool, names in nodes_by_pool(status).items():
            here = Counter({name: more[name] for name in names if more[name]})
            most[pool] = most.get(pool, Counter()) | here
    held: list[Admitted] = []
    for number, (pool, nodes) in enumerate(sorted(most.items())):
        names = tuple(sorted(nodes.elements()))
        if names:
            suffix = f"in-doubt-{number}"
            own = _gang(account, suffix=suffix, pods=len(names), per_pod=per_pod)
            reserved = frozenset(range(len(names)))
            held.append(
                Admitted(
                    gang=own,
                    pool=pool,
                    assignment=names,
                    reserved=reserved,
                    preemptible=False,
                    is_residual=True,
                )
            )
    return held


def unchanged(held: Iterable[Admitted], *, before: Mapping[str, Admitted]) -> dict[str, Admitted]:
    """By uid of the gang: the earlier object where it says the same.

    The scheduler knows it by identity.
    """
    return {each.gang.uid: _unchanged(each, before=before.get(each.gang.uid)) for each in held}


def _unchanged(held: Admitted, *, before: Admitted | None) -> Admitted:
    if before is None:
        return held
    if before.gang == held.gang:
        held = replace(held, gang=before.gang)
    return before if before == held else held


def _gang(account: Account, *, suffix: str, pods: int, per_pod: Resources) -> Gang:
    return Gang(
        key=account.key,
        uid=f"{account.uid}/{suffix}",
        queue=account.queue,
        nodes=pods,
        per_pod=per_pod,
        queued_at=0.0,
        user=account.user,
    )
