"""Drumline on the demo's cluster: Helm, a team's namespace, pool, queue and jobs from examples/."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.kube import Kube
from tools import install
from tools.cluster import Cluster, ClusterError, kubectl
from tools.demo.screen import Screen

NAMESPACE = "demo"
EXAMPLES = install.ROOT / "examples"
SITE_FILES = (EXAMPLES / "gpupool.yaml", EXAMPLES / "queue.yaml")
JOB_FILES = (EXAMPLES / "one-rack.yaml", EXAMPLES / "next-in-line.yaml")
OPERATOR_LABELS = "app.kubernetes.io/name=drumline"
INSTALL_SECONDS = 600

_PENDING = "status in (pending-install, pending-upgrade, pending-rollback)"


def install_drumline(cluster: Cluster, *, screen: Screen) -> None:
    """`helm upgrade --install` with the chart as it is now.

    Raises:
        ClusterError: Helm's words and, where the operator is not ready, its events and log.
    """
    forget_interrupted_install(cluster)
    try:
        with screen.working("helm install"), _operator_watched(cluster, screen=screen):
            install.install(cluster, say=screen.say, timeout_seconds=INSTALL_SECONDS)
    except ClusterError as error:
        raise ClusterError(f"{error}\n{operator_report(cluster)}") from None


def forget_interrupted_install(cluster: Cluster) -> None:
    """Helm refuses to go on where an earlier run was killed in the middle; its note is a Secret."""
    selector = f"owner=helm,name=drumline,{_PENDING}"
    where = ("--namespace", install.SYSTEM_NAMESPACE, "--selector", selector)
    kubectl(cluster, "delete", "secrets", "--ignore-not-found", *where)


def operator_report(cluster: Cluster) -> str:
    """Why the operator's pod is not ready, as far as the cluster tells."""
    where = ("--namespace", install.SYSTEM_NAMESPACE)
    pods = _asked(cluster, "get", "pods", *where, "--output=wide")
    events = _asked(cluster, "get", "events", *where, "--sort-by=.lastTimestamp")
    log = _asked(cluster, "logs", *where, "--selector", OPERATOR_LABELS, "--tail=15")
    parts = {"pods": pods, "events": "\n".join(events.splitlines()[-10:]), "operator's log": log}
    return "\n".join(f"--- {title}\n{text.strip() or '(nothing)'}" for title, text in parts.items())


def open_team(cluster: Cluster) -> Path:
    """The namespace with its claims, the pool and the queue; returns the checkpoints' folder."""
    checkpoints = install.team(cluster, NAMESPACE)
    for file in SITE_FILES:
        kubectl(cluster, "apply", f"--filename={file}")
    return checkpoints


def submit(cluster: Cluster) -> list[str]:
    """Apply the jobs anew, the first one first; returns their names."""
    where = ("--namespace", NAMESPACE)
    files = [f"--filename={file}" for file in JOB_FILES]
    kubectl(cluster, "delete", *files, *where, "--ignore-not-found")
    names = [job_name(file) for file in JOB_FILES]
    kube = Kube(cluster.kubeconfig)
    theirs = f"drumline.dev/job in ({','.join(names)})"
    kube.wait_all("pods", NAMESPACE, lambda pods: not pods, labels=theirs, seconds=180)
    kubectl(cluster, "apply", files[0], *where)
    # the order in the queue is by creation time, which has whole seconds
    kube.wait("trainingjobs", names[0], NAMESPACE, _decided, seconds=180)
    for file in files[1:]:
        kubectl(cluster, "apply", file, *where)
    return names


def job_name(file: Path) -> str:
    """The name of the one job in a file."""
    return yaml.safe_load(file.read_text())["metadata"]["name"]


def _decided(job: dict[str, Any] | None) -> bool:
    return bool((job or {}).get("status", {}).get("phase"))


@contextmanager
def _operator_watched(cluster: Cluster, *, screen: Screen) -> Iterator[None]:
    """Say each time the operator's pods come into another state."""
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(cluster, screen, ended), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(cluster: Cluster, screen: Screen, ended: threading.Event) -> None:
    said = ""
    while not ended.wait(2.0):
        state = _operator_state(cluster)
        if state and state != said:
            screen.say(f"operator: {state}")
            said = state


def _operator_state(cluster: Cluster) -> str:
    where = ("--namespace", install.SYSTEM_NAMESPACE, "--selector", OPERATOR_LABELS)
    try:
        pods: list[dict[str, Any]] = json.loads(
            kubectl(cluster, "get", "pods", *where, "--output=json")
        )["items"]
    except ClusterError:
        return ""
    return ", ".join(_pod_state(pod) for pod in pods)


def _pod_state(pod: dict[str, Any]) -> str:
    name, status = pod["metadata"]["name"], pod.get("status", {})
    for container in status.get("containerStatuses", []):
        waiting = container["state"].get("waiting")
        if container["ready"]:
            return f"{name} ready"
        if waiting is not None:
            return f"{name} {waiting['reason']}"
    return f"{name} {status.get('phase', 'unknown')}, not ready yet"


def _asked(cluster: Cluster, *arguments: str) -> str:
    try:
        return kubectl(cluster, *arguments)
    except ClusterError as error:
        return str(error)
