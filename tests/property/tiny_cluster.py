"""One job of a tiny cluster as a value, what kubelets do to it, and what must hold of several.

A `JobState` is what an API server stores of a job, as text, so that states compare and hash. The
cluster has three nodes for one pod each, a pool and a queue. Time stands still.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from drumline.lifecycle.model.members import members_of
from drumline.lifecycle.model.timestamps import timestamp
from drumline_api.load import parse
from drumline_api.trainingjob import TrainingJobStatus

Json = dict[str, Any]
NOW = 1_700_000_000.0
NAMESPACE = "team"
GPUS = 8
EPOCH, EARLIER = 2, 1
"""Of the leader, and of all before it: leaders only ask whether an epoch is theirs."""


class JobState(NamedTuple):
    """What is stored of a job and its children, without versions."""

    job: str
    """The TrainingJob."""
    pods: tuple[tuple[str, str], ...] = ()
    """By name."""
    children: tuple[str, ...] = ()

    @property
    def status(self) -> Json:
        return json.loads(self.job).get("status", {})

    @property
    def phase(self) -> str | None:
        return self.status.get("phase")

    def with_pod(self, name: str, pod: Json | None) -> JobState:
        """With this pod; None: it is gone."""
        pods = dict(self.pods)
        pods.pop(name, None)
        if pod is not None:
            pods[name] = text_of(pod)
        return self._replace(pods=tuple(sorted(pods.items())))

    def with_status(self, status: Json) -> JobState:
        return self._replace(job=text_of({**json.loads(self.job), "status": status}))

    def of_earlier_leader(self) -> JobState:
        """As the leader's successor reads it."""
        status = self.status
        return self.with_status({**status, "epoch": EARLIER}) if "epoch" in status else self


def text_of(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def a_job(name: str, *, nodes: int, priority: str | None = None) -> JobState:
    """A job of one's own template on whole nodes."""
    spec: Json = {"queue": "queue", "nodes": nodes, "gpusPerNode": GPUS, "gpuPool": "pool"}
    spec["template"] = {"image": "any:1"}
    spec["recovery"] = {"maxRestarts": 1}
    if priority:
        spec["priorityClassName"] = priority
    metadata = {"name": name, "namespace": NAMESPACE, "uid": f"{name}-uid-000", "generation": 1}
    job: Json = {"metadata": {**metadata, "creationTimestamp": timestamp(NOW)}, "spec": spec}
    return JobState(text_of(job))


# --- what kubelets, nodes and users do to one job ----------------------------------------------


def helped(state: JobState) -> Iterator[JobState]:
    """One kubelet does its work: a pod starts, ends well, or is gone once it was deleted."""
    for name, text in state.pods:
        pod = json.loads(text)
        if "deletionTimestamp" in pod["metadata"]:
            yield state.with_pod(name, None)
        elif pod["status"]["phase"] == "Pending":
            yield state.with_pod(name, _running(pod))
        elif pod["status"]["phase"] == "Running" and state.phase == "Running":
            yield state.with_pod(name, _ended(pod, code=0))


def troubled(state: JobState) -> Iterator[JobState]:
    """A pod's program fails, or it vanishes with its node's containers."""
    for name, text in state.pods:
        pod = json.loads(text)
        if "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] == "Running":
            yield state.with_pod(name, _ended(pod, code=1))
            yield state.with_pod(name, None)


def _running(pod: Json) -> Json:
    status: Json = {"phase": "Running", "podIP": "10.0.0.1"}
    status["conditions"] = [{"type": "Ready", "status": "True"}]
    status["containerStatuses"] = _containers(pod, {"running": {}}, ready=True)
    return {**pod, "status": status}


def _ended(pod: Json, *, code: int) -> Json:
    state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
    containers = _containers(pod, state, ready=False)
    phase = "Failed" if code else "Succeeded"
    return {**pod, "status": {"phase": phase, "containerStatuses": containers}}


def _containers(pod: Json, state: Json, *, ready: bool) -> list[Json]:
    name = pod["spec"]["containers"][0]["name"]
    return [{"name": name, "ready": ready, "imageID": "", "restartCount": 0, "state": state}]


# --- what must hold ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """What one job holds: nodes of its places, and of pods that stand on no place of theirs."""

    places: tuple[str, ...]
    strays: tuple[str, ...]
    wrong: tuple[str, ...]


@cache
def held_by(state: JobState) -> Held:
    """See `Held`."""
    status = parse(TrainingJobStatus, state.status)
    members = () if status.finished_at is not None else members_of(status)
    if status.assignment is not None:
        members = [each for each in members if each.index not in (status.assignment.lost or ())]
    places = [(member.index, member.node) for member in members]
    pods = [json.loads(text) for _, text in state.pods]
    live = [pod for pod in pods if pod["status"]["phase"] in {"Pending", "Running"}]
    staying = Counter(_index(pod) for pod in live if "deletionTimestamp" not in pod["metadata"])
    stray = [pod for pod in live if (_index(pod), pod["spec"]["nodeName"]) not in places]
    return Held(
        places=tuple(node for _, node in places),
        strays=tuple(pod["spec"]["nodeName"] for pod in stray),
        wrong=tuple(f"member {index} is there {n} times" for index, n in staying.items() if n > 1),
    )


def wrong_in(states: Iterable[JobState], *, quota: int) -> list[str]:
    """I1 and I2: what of quota and nodes is given away twice."""
    held = [held_by(state) for state in states]
    places = [node for each in held for node in each.places]
    used = Counter([*places, *(node for each in held for node in each.strays)])
    wrong = [text for each in held for text in each.wrong]
    wrong += [f"{node} is given away {n} times" for node, n in used.items() if n > 1]
    if used.total() * GPUS > quota:
        wrong.append(f"{used.total() * GPUS} GPUs of a quota of {quota}")
    return wrong


def wrong_between(before: JobState, after: JobState) -> list[str]:
    """What an operator's step on one job did that follows from no status, or took back."""
    status, was = after.status, before.status
    wrong = [
        f"{name} went from {was[name]} to {status.get(name)}"
        for name in ("generation", "restarts")
        if was.get(name, 0) > status.get(name, 0)
    ]
    if was.get("phase") in {"Succeeded", "Failed"} and status.get("phase") != was["phase"]:
        wrong.append(f"{was['phase']} became {status.get('phase')}")
    members = members_of(parse(TrainingJobStatus, status))
    places = {(member.index, member.pod_generation, member.node) for member in members}
    for name, text in after.pods:
        pod = json.loads(text)
        labels = pod["metadata"]["labels"]
        place = _index(pod), int(labels["drumline.dev/generation"]), pod["spec"]["nodeName"]
        if name not in dict(before.pods) and place not in places:
            wrong.append(f"{name} was created where no status puts it: {place}")
    return wrong


def _index(pod: Json) -> int:
    return int(pod["metadata"]["labels"]["drumline.dev/index"])
