"""`drumline doctor --probe` on real kubelets, on a network that enforces no NetworkPolicy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.site import Site
from tests.patience import HANG_SECONDS

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]


def test_pods_try_the_image_the_limit_and_the_network_and_are_gone_afterwards(site: Site) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "drumline", "doctor", "--probe", "-o", "json"),
            *("--namespace", site.namespace, "--kubeconfig", str(site.cluster.kubeconfig)),
        ],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECONDS,
    )
    assert "trying" in done.stderr
    findings = {row["check"]: row for row in json.loads(done.stdout)["findings"]}
    assert findings["Image"]["verdict"] == "ok", findings["Image"]
    assert "starts on node-0, node-1" in findings["Image"]["message"]
    assert findings["Locked memory"]["verdict"] in {"ok", "warning"}
    assert findings["Network policies"]["verdict"] == "warning", findings["Network policies"]
    assert (
        "(node-0 to node-1): the network plugin does not enforce policies"
        in (findings["Network policies"]["message"])
    )
    left = [
        item["metadata"]["name"]
        for plural in ("pods", "networkpolicies")
        for item in site.kube.list(plural, site.namespace)
        if item["metadata"]["name"].startswith("drumline-probe-")
    ]
    assert left == []
