"""Capacity that a queue pays for beside the members of its jobs.

It consists of remaining pods of jobs, foreign pods that name the queue, and writes whose answer was
lost. Each becomes an `Admitted` gang, so that nodes and quota count it like any other gang. Its uid
is the uid of the job or the pod with a suffix, because the job itself may wait. It is never a
victim, except a foreign pod whose queue returns borrowed quota.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import members_of, nodes_by_pool
from drumline_api.jobstatus import TrainingJobStatus
from drumline_scheduler.model import Admitted, Gang, Role
from drumline_scheduler.resources import Resources

FOREIGN_USER: Final = "foreign pods"
"""User of foreign pods. A job's user name has no spaces, so it cannot be the same."""

MAX_HANGING: Final = 3
"""Most overdue pods of a gang that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The owner of capacity: a job or a foreign pod, and the queue and user that pay."""

    key: str
    """`namespace/name` of the job, or `namespace/pods/name` of the pod."""
    uid: str
    queue: str
    user: str = ""
    is_foreign: bool = False
    """True if it is a pod that does not belong to a job."""
    gives_back: bool = False
    """True if it may be evicted while its queue borrows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignPod:
    """Identity of a foreign pod in the API."""

    namespace: str
    name: str
    uid: str


_FOREIGN: Final = "pods"
"""Marks key and uid of a foreign pod. A job's key and uid never contain it."""
_GROUP: Final = "pod-groups"
"""Marks the uid of a group of foreign pods."""
GROUP_SUFFIX: Final = "group"
"""Suffix of the uid of a group's gang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingPod:
    """A pod that runs although its job gave up its place there, or a foreign pod."""

    name: str
    node: str
    pool: str
    requests: Resources
    leaving: bool
    """True if it is being deleted. Otherwise it may stay for any time."""
    ends_at: float | None = None
    """Time of its end at the latest, or None without a limit."""
    hanging: str = ""
    """Name, node and holder of a pod that should have left. Empty if it is not overdue."""


def account_of(job: Job) -> Account:
    """Return the account of a job."""
    return Account(key=job.key, uid=job.uid, queue=job.spec.queue, user=job.spec.user or "")


def account_of_foreign(pod: ForeignPod, *, queue: str, gives_back: bool) -> Account:
    """Return the account of a foreign pod that this queue pays for.

    Args:
        pod: the running pod.
        queue: name of the queue that pays.
        gives_back: whether the pod is evicted when its quota is reclaimed.
    """
    return Account(
        key=f"{pod.namespace}/{_FOREIGN}/{pod.name}",
        uid=f"{_FOREIGN}/{pod.uid}",
        queue=queue,
        user=FOREIGN_USER,
        is_foreign=True,
        gives_back=gives_back,
    )


def account_of_group(
    account: Account, *, namespace: str, group: str, pool: str, gives_back: bool
) -> Account:
    """Return the account of the pods of a group in one pool, made from the account of one of them.

    Args:
        account: the account of one of the pods. Its queue pays.
        namespace: namespace of the pods.
        group: name of the group.
        pool: the pool in which the pods run.
        gives_back: whether the group may be evicted while its queue borrows.
    """
    return replace(
        account,
        key=f"{namespace}/{_FOREIGN}/{group}",
        uid=f"{_GROUP}/{namespace}/{account.queue}/{pool}/{group}",
        gives_back=gives_back,
    )


def foreign_pod_of(key: str, uid: str) -> ForeignPod | None:
    """Return the foreign pod of a gang's key and uid, or None for a job's gang.

    Example: the account has the key team/pods/chat-1 and the uid pods/UID. The gang has the same
    key and the uid pods/UID/pods-0.
    """
    mark, _, rest = uid.partition("/")
    if mark != _FOREIGN:
        return None
    namespace, _, name = key.split("/", 2)
    return ForeignPod(namespace=namespace, name=name, uid=rest.partition("/")[0])


def held_by_pods(account: Account, pods: Iterable[RemainingPod]) -> list[Admitted]:
    """Return one gang for each pool and pod shape, which holds the pods' resources."""
    by_shape: dict[tuple[str, bool, Resources, float | None, bool], list[RemainingPod]] = {}
    for pod in sorted(pods, key=lambda pod: pod.name):
        key = (pod.pool, pod.leaving, pod.requests, pod.ends_at, bool(pod.hanging))
        by_shape.setdefault(key, []).append(pod)
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
        for number, ((pool, leaving, requests, ends_at, hangs), own) in enumerate(by_shape.items())
    ]


def held_by_group(account: Account, pods: Iterable[RemainingPod]) -> Admitted:
    """Return one gang for a group of pods of one pool, which leaves whole or not at all.

    The most numerous equal pods are its main pods, and all others are roles.
    """
    by_shape: dict[Resources, list[RemainingPod]] = {}
    for pod in sorted(pods, key=lambda pod: pod.name):
        by_shape.setdefault(pod.requests, []).append(pod)
    *rarer, main = sorted(by_shape.values(), key=lambda own: (len(own), own[0].name))
    gang = _gang(account, suffix=GROUP_SUFFIX, pods=len(main), per_pod=main[0].requests)
    ends = [pod.ends_at for own in by_shape.values() for pod in own]
    return Admitted(
        gang=replace(
            gang,
            roles=tuple(
                Role(name=own[0].name, pods=len(own), per_pod=own[0].requests) for own in rarer
            ),
        ),
        pool=main[0].pool,
        assignment=tuple(pod.node for own in (*rarer, main) for pod in own),
        preemptible=account.gives_back,
        # The group ends with the last of its pods.
        ends_at=None if None in ends else max(filter(None, ends), default=None),
        is_residual=True,
        is_foreign=True,
    )


def held_by_lost_writes(
    account: Account,
    *,
    per_pod: Resources,
    places: Sequence[str],
    statuses: Iterable[TrainingJobStatus],
) -> list[Admitted]:
    """Return the resources that lost writes may have taken beside the job's places.

    At most one of the writes took effect. On each node, the maximum over all writes is held.

    Args:
        account: account of the job.
        per_pod: requests of each of its pods.
        places: nodes of the places that it holds in the version that was read.
        statuses: the statuses that were written.
    """
    # Phase 1: the maximum by pool and node over all writes.
    most: dict[str, Counter[str]] = {}
    for status in statuses:
        more = Counter(member.node for member in members_of(status)) - Counter(places)
        for pool, names in nodes_by_pool(status).items():
            here = Counter({name: more[name] for name in names if more[name]})
            most[pool] = most.get(pool, Counter()) | here
    # Phase 2: one gang for each pool. Its places count as reserved, because no pods exist.
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
    """Return gangs by uid, each as the earlier object if it is equal.

    The scheduler recognises unchanged gangs by identity.
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
