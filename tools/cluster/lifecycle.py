"""Start, find and stop a cluster by name, whichever provider makes it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.cluster.model import (
    Cluster,
    ClusterError,
    ClusterSpec,
    Provider,
    cluster_folder,
    read_cluster,
)
from tools.cluster.process import marked_children
from tools.cluster.progress import Progress, Say
from tools.cluster.providers import PROVIDERS, choose


def start(spec: ClusterSpec, *, say: Say) -> Cluster:
    """Start the cluster, or return the one that already runs under this name.

    What an interrupted start left is removed first.

    Raises:
        ClusterError: it cannot be; what was made so far stays for a look until `stop`.
    """
    progress = Progress(out=say)
    with _alone(spec.folder):
        running = load(spec.name)
        if running is not None:
            progress.say(f"cluster {spec.name} already runs: KUBECONFIG={running.kubeconfig}")
            return running
        provider, reason = choose(spec)
        progress.say(f"cluster {spec.name}, provider {provider}: {reason}")
        _remove(spec.name)
        spec.folder.mkdir()
        _provider_file(spec.folder).write_text(provider)  # before anything that needs removal
        with marked_children(spec.folder):
            cluster = PROVIDERS[provider].start(spec, progress=progress)
        cluster.save()
    progress.say(f"cluster {spec.name} is up: export KUBECONFIG={cluster.kubeconfig}")
    return cluster


def load(name: str) -> Cluster | None:
    """The running cluster of this name, or None (never one whose API server is gone)."""
    cluster = read_cluster(cluster_folder(name))
    if cluster is None or not PROVIDERS[cluster.provider].runs(cluster):
        return None
    return cluster


def update_images(name: str, *, say: Say) -> None:
    """Build the images of the repository as it is now and load them into the running cluster.

    Raises:
        ClusterError: no such cluster runs, or its images are not ours to change.
    """
    cluster = load(name)
    if cluster is None:
        raise ClusterError(f"cluster {name} does not run: `up --name {name}` first")
    PROVIDERS[cluster.provider].load_images(cluster, progress=Progress(out=say))


def stop(name: str, *, say: Say) -> None:
    """Remove every trace of the cluster, from whatever moment of its life."""
    with _alone(cluster_folder(name)):
        _remove(name)
    say(f"cluster {name} is gone")


def _remove(name: str) -> None:
    folder = cluster_folder(name)
    note = _provider_file(folder)
    provider = Provider(note.read_text()) if note.exists() else Provider.NATIVE
    PROVIDERS[provider].remove(name)
    if folder.exists():
        shutil.rmtree(folder)


def _provider_file(folder: Path) -> Path:
    return folder / "provider"


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
