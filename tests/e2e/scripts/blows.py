"""What befalls a job of a user's script, one blow after the other, and what each costs it.

A blow returns once training goes on: in new processes, as a script is never resumed.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.e2e.absence import away
from tests.e2e.announcers import ANNOUNCERS, Marker
from tests.e2e.scripts.script_job import SAVED_EVERY, ScriptJob
from tests.e2e.site import OPERATOR_NODE, SLEEPER
from tests.kube import Json, phase_is
from tools.cluster import NodeInfo, kubectl
from tools.cluster.inside import strike
from tools.cluster.kwok import is_ready
from tools.cluster.nodes import boot, power_off

URGENT = "test-scripts-urgent"
BETWEEN_SAVES = SAVED_EVERY // 2
"""Steps after a save at which a blow falls: it costs something where nobody is asked to save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """One kind of fault.

    Attributes:
        strike: returns once the fault has struck; a context while it lasts.
        announced: there is time to save.
        keeps_pods: nothing but processes is lost.
    """

    what: str
    strike: Callable[[ScriptJob], Iterator[None]]
    announced: bool = False
    keeps_pods: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one blow did to a job."""

    steps_lost: int
    """Steps that were done twice."""
    seconds: float
    """From the blow until rank 0's process begins again: what is not the script's own start."""
    pods_before: dict[int, str]
    pods_after: dict[int, str]
    """Uids by index."""
    containers_restarted: int


def suffer(job: ScriptJob, blow: Blow) -> Cost:
    """Let it befall the job in the middle between two saves."""
    rehearsal = job.rehearsal
    last = rehearsal.last_step()
    rehearsal.reach(last + (BETWEEN_SAVES - last) % SAVED_EVERY)
    before, life = _uids(job), job.lines()[-1].life
    struck_at = time.time()
    with contextmanager(blow.strike)(job):
        lines = job.wait_for_life(life)
        _wait_until_whole(job)
    old = [line for line in job.lines() if line.life != lines[0].life]
    members = rehearsal.members()
    return Cost(
        steps_lost=max(line.step for line in old) - lines[0].step + 1,
        seconds=lines[0].began_at - struck_at,
        pods_before=before,
        pods_after=_uids(job),
        containers_restarted=sum(
            each["restartCount"]
            for pod in members.values()
            for each in pod["status"].get("containerStatuses", [])
        ),
    )


def _kill_rank(job: ScriptJob) -> Iterator[None]:
    uid, process = job.rehearsal.process(1)
    strike(job.site.cluster, uid, process.inner_pid, signal.SIGKILL)
    yield


def _delete_pod(job: ScriptJob) -> Iterator[None]:
    pod = job.rehearsal.members()[1]
    job.site.kube.delete("pods", pod["metadata"]["name"], job.site.namespace)
    yield


def _cut_power(job: ScriptJob) -> Iterator[None]:
    node, site = mortal_node(job), job.site
    lost = [pod for pod in job.rehearsal.members().values() if _node_name(pod) == node.name]
    power_off(node, folder=site.cluster.folder)
    try:
        yield
    finally:
        job.rehearsal.slow_down()  # it takes a minute until the node is back
        boot(node, folder=site.cluster.folder)
        for pod in lost:
            site.kube.wait(
                "pods", pod["metadata"]["name"], site.namespace, lambda item: item is None
            )
        site.kube.wait("nodes", node.name, None, lambda item: _is_usable(item, gpus=node.gpus))


def _drain(job: ScriptJob) -> Iterator[None]:
    node, cluster = mortal_node(job), job.site.cluster
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s")
    try:
        kubectl(cluster, "drain", node.name, *options)
        yield
    finally:
        kubectl(cluster, "uncordon", node.name)


def _preempt(job: ScriptJob) -> Iterator[None]:
    """Both free places of every node are asked for by a job of a higher priority."""
    site, name = job.site, f"{job.name}-claim"
    site.kube.ensure(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": URGENT},
            "value": 1000,
        }
    )
    site.submit(name, nodes=3, gpusPerNode=2, template=SLEEPER, priorityClassName=URGENT)
    site.wait(name, phase_is("Running"))
    site.kube.delete("trainingjobs", name, site.namespace)
    yield


def _announce_end(job: ScriptJob) -> Iterator[None]:
    """As Azure does, 30 s before the machine is gone."""
    with Marker(job.site.cluster, mortal_node(job).name) as marker:
        ANNOUNCERS["Azure"].play(marker)
        yield


def _kill_rank_without_operator(job: ScriptJob) -> Iterator[None]:
    life = job.lines()[-1].life
    with away(job.site.kube):
        uid, process = job.rehearsal.process(1)
        strike(job.site.cluster, uid, process.inner_pid, signal.SIGKILL)
        job.wait_for_life(life)
    yield


BLOWS = {
    "killed": Blow(what="SIGKILL of a rank", strike=_kill_rank, keeps_pods=True),
    "alone": Blow(
        what="SIGKILL, the operator down", strike=_kill_rank_without_operator, keeps_pods=True
    ),
    "deleted": Blow(what="pod deleted", strike=_delete_pod, announced=True),
    "drained": Blow(what="`kubectl drain`", strike=_drain, announced=True),
    "preempted": Blow(what="preemption", strike=_preempt, announced=True),
    "spot": Blow(what="spot notice of 30 s", strike=_announce_end, announced=True),
    "dead": Blow(what="node dead", strike=_cut_power),
}


def _wait_until_whole(job: ScriptJob) -> None:
    """The status shows the gang that trains: the next blow finds it in its place."""

    def is_whole(json: Json | None) -> bool:
        status = (json or {})["status"]
        assignment = status.get("assignment") or {}
        moving = assignment.get("lost") or assignment.get("joining") or status.get("disruption")
        return status["phase"] == "Running" and not moving

    job.site.wait(job.name, is_whole)


def _uids(job: ScriptJob) -> dict[int, str]:
    members = job.rehearsal.members()
    return {index: pod["metadata"]["uid"] for index, pod in members.items()}


def mortal_node(job: ScriptJob) -> NodeInfo:
    """A node with a member on it, and not the operator."""
    names = {_node_name(pod) for pod in job.rehearsal.members().values()} - {OPERATOR_NODE}
    return next(node for node in job.site.cluster.nodes if node.name == min(names))


def _node_name(pod: Json) -> str:
    return pod["spec"]["nodeName"]


def _is_usable(node: Json | None, *, gpus: int) -> bool:
    if node is None or not is_ready(node):
        return False
    return node["status"]["allocatable"].get("nvidia.com/gpu") == str(gpus)
