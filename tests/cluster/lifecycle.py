"""Start, find and stop a cluster by name, whichever provider makes it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.model import Cluster, ClusterSpec, cluster_folder, read_cluster
from tests.cluster.native import remove_native, start_native
from tests.cluster.process import find
from tests.cluster.progress import Progress, Say


def start(spec: ClusterSpec, *, say: Say) -> Cluster:
    """Start the cluster, or return the one that already runs under this name.

    What an interrupted start left is removed first.
    """
    progress = Progress(out=say)
    with _alone(spec.folder):
        running = load(spec.name)
        if running is not None:
            progress.say(f"cluster {spec.name} already runs: {running.kubeconfig}")
            return running
        remove_native(spec.name)
        cluster = start_native(spec, progress=progress)
        cluster.save()
    progress.say(f"cluster {spec.name} is up: export KUBECONFIG={cluster.kubeconfig}")
    return cluster


def load(name: str) -> Cluster | None:
    """The running cluster of this name, or None (never one whose API server is gone)."""
    cluster = read_cluster(cluster_folder(name))
    if cluster is None:
        return None
    alive = any(process.role == "kube-apiserver" for process in find(cluster.folder))
    return cluster if alive else None


def stop(name: str, *, say: Say) -> None:
    """Remove every trace of the cluster, from whatever moment of its life."""
    folder = cluster_folder(name)
    with _alone(folder):
        remove_native(name)
    say(f"cluster {name} is gone")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One start or stop of a cluster at a time; a crash releases the lock."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_suffix(".lock")
    while True:
        lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists() and os.fstat(lock).st_ino == path.stat().st_ino:
            break
        os.close(lock)  # the file was removed by its last holder meanwhile
    try:
        yield
    finally:
        path.unlink()
        os.close(lock)
