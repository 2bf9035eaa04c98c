"""Who must not notice anything: a job of another namespace, and the operator."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.absence import DEPLOYMENT, LABELS
from tests.e2e.rehearsals import Rehearsal, rehearse
from tests.e2e.site import Site
from tests.kube import Json, Kube
from tools.cluster import Cluster, kubectl
from tools.cluster.inside import inhabitants
from tools.install import SYSTEM_NAMESPACE

PACE_SECONDS = 0.25
STEPS = 100_000
RESOURCES = {"cpu": "700m", "memory": "1Gi"}
PROMPT_SECONDS = 60.0
"""From a job's creation to the end of its program, of which the kubelet takes most."""
STORE_PORT = 29500
_LISTENS = "0A"
_ERRORS = ("cycle_failed", "agent_poll_failed", "report_failed", "forecast_failed", "Traceback")


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What would have changed if anything had been harmed."""

    operator_pods: dict[str, tuple[str, int]]
    """By name: uid, and restarts of the container."""
    lease: tuple[str, int]
    """Who leads, and how often that changed."""
    neighbour_pods: dict[str, tuple[str, int]]
    generation: int
    processes: int
    """Rank processes that ever began."""


def start_neighbour(site: Site) -> Rehearsal:
    """A job of two pods that trains for longer than the tests take."""
    job = rehearse(
        site,
        "neighbour",
        steps=STEPS,
        pace_seconds=PACE_SECONDS,
        every_steps=1000,
        nodes=2,
        gpusPerNode=1,
        resources=RESOURCES,
    )
    job.reach(3)
    return job


def life_of(neighbour: Rehearsal) -> Life:
    """As it is now."""
    kube = neighbour.site.kube
    lease = kube.get("leases", DEPLOYMENT, SYSTEM_NAMESPACE)["spec"]
    return Life(
        operator_pods=_pods(operators(kube)),
        lease=(lease["holderIdentity"], lease["leaseTransitions"]),
        neighbour_pods=_pods(neighbour.site.pods(neighbour.name)),
        generation=neighbour.generation(),
        processes=len(neighbour.begun()),
    )


def operators(kube: Kube) -> list[Json]:
    """The operator's pods."""
    return kube.list("pods", SYSTEM_NAMESPACE, labels=LABELS)


def peak_mebibytes(cluster: Cluster, kube: Kube) -> dict[str, float]:
    """The most memory that the process of each of the operator's pods ever had resident."""
    return {
        pod["metadata"]["name"]: _peak(inhabitants(cluster, pod["metadata"]["uid"])[1].pid)
        for pod in operators(kube)
    }


def errors(cluster: Cluster, kube: Kube, *, since: float) -> list[str]:
    """What the operator logged that no user's object may cause."""
    seconds = f"--since={int(time.time() - since) + 1}s"
    namespace = f"--namespace={SYSTEM_NAMESPACE}"
    lines = [
        line
        for pod in operators(kube)
        for line in kubectl(cluster, "logs", namespace, seconds, _name(pod)).splitlines()
    ]
    return [line for line in lines if any(error in line for error in _ERRORS)]


def addresses(pods: list[Json]) -> list[str]:
    """Of pods that run."""
    return [pod["status"]["podIP"] for pod in pods]


def serves_store(neighbour: Rehearsal) -> bool:
    """Whether the rendezvous store listens in the leader's pod: what a spy finds is not nothing."""
    _, process = neighbour.process(0)
    rows = Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]
    listening = {row.split()[1].rpartition(":")[2] for row in rows if row.split()[3] == _LISTENS}
    return f"{STORE_PORT:04X}" in listening


def prompt(site: Site, name: str) -> Any:
    """A job of the neighbour's namespace is decided, started and done as on any other day."""
    template = {"image": "drumline/trainer:dev", "command": ["true"]}
    site.submit(name, template=template)
    return site.finish(name, seconds=PROMPT_SECONDS)


def _pods(pods: list[Json]) -> dict[str, tuple[str, int]]:
    return {
        _name(pod): (
            pod["metadata"]["uid"],
            sum(each["restartCount"] for each in pod["status"]["containerStatuses"]),
        )
        for pod in pods
    }


def _name(pod: Json) -> str:
    return pod["metadata"]["name"]


def _peak(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
