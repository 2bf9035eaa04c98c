"""What end-to-end tests share: three real nodes of two GPUs each."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.e2e.rehearsals import REHEARSED, Outcome, rehearse
from tests.e2e.site import POOL, QUEUE, VALUES, Site, close_site, open_site
from tests.kube import Kube
from tools import install
from tools.cluster import Cluster, ClusterSpec, load, start, stop, update_images


def pytest_configure() -> None:
    """SIGTERM interrupts as Ctrl-C does: fixtures take their clusters down."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """3 nodes x 2 GPUs; nodes 0 and 1 in rack-0, node 2 in rack-1.

    DRUMLINE_E2E_CLUSTER names one to use (started if it does not run) and to leave running.
    """
    kept = os.environ.get("DRUMLINE_E2E_CLUSTER")
    spec = ClusterSpec(name=kept or f"drumline-e2e-{os.getpid()}")
    try:
        if kept is not None and load(kept) is not None:
            update_images(kept, say=print)  # what the tests test is the code as it is now
        yield start(spec, say=print)
    finally:
        if kept is None:
            stop(spec.name, say=print)


@pytest.fixture(scope="session")
def drumline(cluster: Cluster) -> Iterator[Kube]:
    """The cluster with Drumline installed by Helm, all GPUs one pool, one queue for all of them."""
    install.install(cluster, say=print, progress_seconds=1, values=VALUES)
    install.pool_and_queue(cluster, pool=POOL, queue=QUEUE, gpus=6)
    kube = Kube(cluster.kubeconfig)
    yield kube
    kube.close()


@pytest.fixture
def site(cluster: Cluster, drumline: Kube) -> Iterator[Site]:
    """A team's namespace; its jobs are gone afterwards."""
    opened = open_site(cluster, drumline)
    yield opened
    close_site(opened)


@pytest.fixture(scope="module")
def stage(cluster: Cluster, drumline: Kube) -> Iterator[Site]:
    """A namespace for all the jobs of one file."""
    opened = open_site(cluster, drumline)
    yield opened
    close_site(opened)


@pytest.fixture(scope="session")
def undisturbed(cluster: Cluster, drumline: Kube) -> Outcome:
    """What the rehearsed job comes to when nothing befalls it."""
    site = open_site(cluster, drumline)
    job = rehearse(site, "undisturbed", **REHEARSED)
    job.finish()
    outcome = job.outcome()
    close_site(site)
    return outcome
