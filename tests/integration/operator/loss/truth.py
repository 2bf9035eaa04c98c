"""What held at every moment of a life, by what the API server committed; nobody's cache is asked.

The versions of all objects of a namespace in the order of their commits are a history: after each
of them I1 to I4 must hold, and what was decided must have been durable before anything followed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from drumline.lifecycle.model.members import GangMember, members_of
from drumline_api.conditions import Phase
from drumline_api.load import parse
from drumline_api.trainingjob import TrainingJobSpec, TrainingJobStatus
from tests.integration.operator.loss.api import Version
from tests.kube import Json

OVER = frozenset({Phase.SUCCEEDED, Phase.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What there is."""

    gpus_per_node: int
    quota: int
    """GPUs of the queue."""


@dataclass(frozen=True, slots=True)
class _Job:
    uid: str
    name: str
    gpus: int
    status: TrainingJobStatus

    @property
    def members(self) -> tuple[GangMember, ...]:
        """Those who hold a place."""
        if self.status.phase in OVER or self.status.assignment is None:
            return ()
        lost = frozenset(self.status.assignment.lost or ())
        return tuple(member for member in members_of(self.status) if member.index not in lost)


@dataclass(frozen=True, slots=True)
class _Pod:
    name: str
    job_uid: str
    index: int
    generation: int
    node: str
    gpus: int
    live: bool
    leaving: bool


@dataclass(kw_only=True)
class _State:
    limits: Limits
    jobs: dict[str, _Job] = field(default_factory=dict[str, _Job])
    pods: dict[str, _Pod] = field(default_factory=dict[str, _Pod])

    def violations(self) -> Iterator[str]:
        yield from self._over_assigned()
        held = sum(job.gpus * len(job.members) for job in self.jobs.values())
        if held > self.limits.quota:
            yield f"I1: {held} GPUs of a quota of {self.limits.quota}"
        present = Counter(
            (pod.job_uid, pod.index) for pod in self.pods.values() if pod.live and not pod.leaving
        )
        yield from (f"member {key} is there {n} times" for key, n in present.items() if n > 1)

    def _over_assigned(self) -> Iterator[str]:
        """I2: places of gangs, and pods that stand on no place of theirs."""
        used: Counter[str] = Counter()
        places: set[tuple[str, str, int]] = set()
        for job in self.jobs.values():
            for member in job.members:
                used[member.node] += job.gpus
                places.add((job.uid, member.node, member.index))
        for pod in self.pods.values():
            if pod.live and (pod.job_uid, pod.node, pod.index) not in places:
                used[pod.node] += pod.gpus
        for node, gpus in used.items():
            if gpus > self.limits.gpus_per_node:
                yield f"I2: {gpus} GPUs of {node} are given away"


def violations(
    history: Iterable[Version], limits: Limits, *, late: Collection[str] = ()
) -> list[str]:
    """What did not hold after some commit, each once.

    Args:
        history: all commits.
        limits: what there is.
        late: the pods that operators which ended had under way: they may come when their gang has
            been decided on anew.
    """
    state = _State(limits=limits)
    wrong: dict[str, None] = {}
    newest: dict[str, _Job] = defaultdict()
    for version in sorted(history, key=lambda version: version.number):
        if version.plural == "trainingjobs":
            job = _job(version.value)
            if job.uid in newest:
                wrong |= dict.fromkeys(_back(newest[job.uid], job))
            newest[job.uid] = job
            if version.deleted:
                state.jobs.pop(job.uid, None)
            else:
                state.jobs[job.uid] = job
        elif version.plural == "pods":
            pod = _pod(version.value)
            if pod.name not in state.pods and not version.deleted and pod.name not in late:
                wrong |= dict.fromkeys(_undecided(pod, newest.get(pod.job_uid)))
            if version.deleted:
                state.pods.pop(pod.name, None)
            else:
                state.pods[pod.name] = pod
        wrong |= dict.fromkeys(state.violations())
    return list(wrong)


def _back(before: _Job, after: _Job) -> Iterator[str]:
    """What never goes back."""
    was, now = before.status, after.status
    for name, earlier, later in (
        ("generation", was.generation, now.generation),
        ("epoch", was.epoch, now.epoch),
        ("restarts", was.restarts, now.restarts),
        (
            "checkpoint",
            was.checkpoint and was.checkpoint.step,
            now.checkpoint and now.checkpoint.step,
        ),
    ):
        if (later or 0) < (earlier or 0):
            yield f"{before.name}: {name} went from {earlier} to {later}"
    if was.phase in OVER and now.phase is not was.phase:
        yield f"{before.name}: {was.phase} became {now.phase}"
    if was.budgets and sum(b.used for b in was.budgets) > sum(b.used for b in now.budgets or ()):
        yield f"{before.name}: budgets went back"


def _undecided(pod: _Pod, job: _Job | None) -> Iterator[str]:
    """A pod is created where a committed status puts it."""
    if job is None:
        yield f"{pod.name} came before its job"
        return
    places = {
        (member.index, member.pod_generation): member.node for member in members_of(job.status)
    }
    if places.get((pod.index, pod.generation)) != pod.node:
        yield f"{pod.name} on {pod.node} is in no status before it: {places}"


def _job(value: Json) -> _Job:
    metadata = value["metadata"]
    spec = parse(TrainingJobSpec, value["spec"])
    status = parse(TrainingJobStatus, value.get("status", {}))
    return _Job(metadata["uid"], metadata["name"], spec.gpus_per_node, status)


def _pod(value: Json) -> _Pod:
    metadata, spec = value["metadata"], value["spec"]
    labels = metadata["labels"]
    asked = [
        int(container["resources"].get("limits", {}).get("nvidia.com/gpu", 0))
        for container in spec["containers"]
    ]
    return _Pod(
        name=metadata["name"],
        job_uid=labels["drumline.dev/job-uid"],
        index=int(labels["drumline.dev/index"]),
        generation=int(labels["drumline.dev/generation"]),
        node=spec["nodeName"],
        gpus=sum(asked),
        live=value["status"].get("phase") not in {"Succeeded", "Failed"},
        leaving="deletionTimestamp" in metadata,
    )
