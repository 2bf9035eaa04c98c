"""A script that fails for good is held for its user, with a sidecar beside it, on real kubelets.

Its ranks are preloaded: the second attempt runs in a process that had imported before.
"""

from __future__ import annotations

import pytest

from tests.e2e.site import Site
from tests.kube import Json, phase_is
from tools.cluster import kubectl
from tools.cluster.images import TRAINER_IMAGE

pytestmark = pytest.mark.extended

SCRIPT = """
import os, pathlib, sys, time
folder = pathlib.Path("/checkpoints")
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
early = "preloaded" if "decimal" in sys.modules else "cold"
(folder / f"began-{attempt}").write_text(early)
print("iter 1: loss 0.5000, time 12.00ms, mfu 1.00%", flush=True)
if attempt == "0":
    while not (folder / "go").exists():
        time.sleep(0.05)
    time.sleep(1)  # a step, in which the standby says that it is ready
    os.kill(os.getpid(), 9)
pathlib.Path("/home/drumline/evidence").write_text("what the user looks for")
raise SystemExit("cannot go on")
"""
SIDECAR = """
import pathlib, time
pathlib.Path("/checkpoints/beside").touch()
while True:
    time.sleep(1)
"""


def test_a_failed_script_stays_to_be_looked_into_until_it_is_stopped(site: Site) -> None:
    mount = [{"name": "saved", "mountPath": "/checkpoints"}]
    (site.checkpoints / "script.py").write_text(SCRIPT)
    template = {
        "image": TRAINER_IMAGE,
        "launch": "PerGpu",
        "preload": ["decimal"],
        "command": ["python3", "/checkpoints/script.py"],
        "terminationGracePeriodSeconds": 2,
        "sidecars": [
            {"name": "beside", "command": ["python3", "-c", SIDECAR], "volumeMounts": mount}
        ],
        "volumes": [{"name": "saved", "persistentVolumeClaim": {"claimName": "checkpoints"}}],
        "volumeMounts": mount,
    }
    recovery = {"maxRestarts": 0, "holdSeconds": 600}
    site.submit("held", nodes=1, gpusPerNode=1, template=template, recovery=recovery)

    def steps(job: Json | None) -> bool:
        return (job or {}).get("status", {}).get("step") == 1

    site.wait("held", steps)
    in_pod = ("exec", "held-0-g1", f"-n={site.namespace}", "-c=trainer", "--")
    has_imported = ("sh", "-c", "grep -ls _decimal /proc/[0-9]*/maps | head -1")
    while not kubectl(site.cluster, *in_pod, *has_imported).strip():
        pass  # each question takes a process of its own
    (site.checkpoints / "go").touch()

    def held(job: Json | None) -> bool:
        return (job or {}).get("status", {}).get("reason") == "Held"

    job = site.wait("held", held)
    assert (site.checkpoints / "began-0").read_text() == "cold"
    assert (site.checkpoints / "began-1").read_text() == "preloaded"
    assert (site.checkpoints / "beside").exists()
    assert (
        kubectl(site.cluster, *in_pod, "cat", "/home/drumline/evidence")
        == "what the user looks for"
    )
    assert "drumline stop" in job["status"]["message"]
    site.kube.patch("trainingjobs", "held", {"spec": {"suspend": True}}, site.namespace)
    site.wait("held", phase_is("Suspended"))
    site.kube.wait_all(
        "pods", site.namespace, lambda pods: not pods, labels="drumline.dev/job=held", seconds=60
    )
