"""`drumline check-nodes` on real kubelets: a gang checks the nodes it is on, and the pool hears."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.e2e.site import POOL, QUEUE, Site
from tests.patience import HANG_SECONDS
from tools.cluster.images import TRAINER_IMAGE
from tools.install import SITE_PACKAGES_CLAIM


@pytest.fixture
def packages(site: Site) -> Iterator[None]:
    """Torch in every pod of the pool: the images of these tests have none."""
    volume = {"name": "packages", "persistentVolumeClaim": {"claimName": SITE_PACKAGES_CLAIM}}
    mount = {"name": "packages", "mountPath": "/opt/site-packages", "readOnly": True}
    profile = {"volumes": [volume], "volumeMounts": [mount]}
    site.kube.patch("gpupools", POOL, {"spec": {"podProfile": profile}})
    yield
    site.kube.patch("gpupools", POOL, {"spec": {"podProfile": None}})


@pytest.mark.usefixtures("packages")
def test_idle_nodes_check_themselves_and_each_other(site: Site) -> None:
    options = ("--queue", QUEUE, "--image", TRAINER_IMAGE, "-n", site.namespace)
    config = ("--kubeconfig", str(site.cluster.kubeconfig), "--device", "cpu")
    done = subprocess.run(
        (sys.executable, "-m", "drumline", "check-nodes", POOL, *options, *config),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
        env={**os.environ, "PYTHONPATH": "operator:trainer"},
    )
    printed = f"{done.stdout}\n{done.stderr}"
    # How fast three nodes on one machine are is chance: one may be found slow, none wrong.
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if "node-" in line[:8]}
    assert sorted(lines) == ["node-0", "node-1", "node-2"], printed
    slow = {node for node, line in lines.items() if not line.endswith("passed")}
    assert done.returncode == (1 if slow else 0), printed
    assert "wrong" not in printed
    health = site.kube.get("gpupools", POOL)["spec"].get("nodeHealth", {})
    assert {entry["node"] for entry in health.get("checked", []) if "failed" in entry} == slow
    assert not site.kube.list("trainingjobs", site.namespace), "the job is gone again"
    site.kube.patch("gpupools", POOL, {"spec": {"nodeHealth": None}})
