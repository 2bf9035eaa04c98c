"""A job in three dimensions through the operator: DP 2 x TP 2 x PP 2 on two nodes of four GPUs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from tests.e2e.site import POOL, QUEUE, Site, close_site, open_site
from tests.kube import Kube
from tools import install
from tools.cluster import ClusterSpec, start, stop

pytestmark = pytest.mark.extended

STEPS = 20
CHECKPOINT = {"claimName": "checkpoints", "everySteps": STEPS}


@pytest.fixture(scope="module")
def wide() -> Iterator[Site]:
    """Two nodes of four GPUs each, with Drumline, and a team's namespace."""
    spec = ClusterSpec(name=f"drumline-wide-{os.getpid()}", nodes=2, gpus_per_node=4)
    try:
        cluster = start(spec, say=print)
        install.install(cluster, say=print, progress_seconds=1)
        install.pool_and_queue(cluster, pool=POOL, queue=QUEUE, gpus=8)
        kube = Kube(cluster.kubeconfig)
        site = open_site(cluster, kube)
        yield site
        close_site(site)
        kube.close()
    finally:
        stop(spec.name, say=print)


def test_three_dimensions_train_what_sharded_weights_train(wide: Site) -> None:
    degrees = {"tensor": 2, "pipeline": 2}
    wide.submit(
        "three-dimensional",
        nodes=2,
        gpusPerNode=4,
        trainer={"steps": STEPS, "parallelism": degrees},
        checkpoint={**CHECKPOINT, "path": "three"},
    )
    wide.finish("three-dimensional")
    assert len(set(wide.nodes("three-dimensional"))) == 2
    wide.submit(
        "sharded",
        nodes=1,
        gpusPerNode=4,
        trainer={"steps": STEPS},
        checkpoint={**CHECKPOINT, "path": "one"},
    )
    wide.finish("sharded")

    three, single = wide.losses("three"), wide.losses("one")
    assert sorted(three) == list(range(1, STEPS + 1))
    assert three == pytest.approx(single, rel=1e-5)
    saved = wide.checkpoints / "three" / f"step-{STEPS:08d}" / "manifest.json"
    assert json.loads(saved.read_text())["world_size"] == 8
