"""What a pool adds to its pods is what the API server accepts, and says why where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.integration.operator.conftest import Site
from tests.kube import Json, phase_is, ready

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.extended(keep=1)]

ROOT = Path(__file__).parents[3]


def profile_of(example: str) -> Json:
    text = (ROOT / "examples" / f"{example}.yaml").read_text()
    return yaml.safe_load(text)["spec"]["podProfile"]


@pytest.mark.parametrize("launch", ["Direct", "PerGpu"])
def test_pods_with_the_daemon_of_a_network_are_created(site: Site, launch: str) -> None:
    profile = profile_of("gpupool-a3-mega")
    site.kube.patch("gpupools", site.pool, {"spec": {"podProfile": profile}})
    site.kube.wait("gpupools", site.pool, None, ready("True", "Accepted"))
    template = {"image": "any:1", "command": ["train"], "launch": launch}
    site.submit("fast", gpusPerNode=8, template=template)
    site.kube.wait("pods", "fast-0-g1", site.namespace, lambda pod: pod is not None)
    (pod,) = site.pods("fast")
    daemon, *_ = pod["spec"]["initContainers"]
    assert (daemon["name"], daemon["restartPolicy"]) == ("tcpxo-daemon", "Always")
    (container,) = pod["spec"]["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert {"/sys", "/proc/sys", "/dev/aperture_devices"} <= {
        volume["hostPath"]["path"] for volume in pod["spec"]["volumes"] if "hostPath" in volume
    }
    assert pod["metadata"]["annotations"]["networking.gke.io/default-interface"] == "eth0"


def test_a_namespace_that_forbids_what_a_pool_adds_says_so_in_the_job(site: Site) -> None:
    site.kube.patch("gpupools", site.pool, {"spec": {"podProfile": profile_of("gpupool-a3-mega")}})
    site.kube.wait("gpupools", site.pool, None, ready("True", "Accepted"))
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    site.kube.patch("namespaces", site.namespace, {"metadata": {"labels": labels}})
    site.submit("refused", gpusPerNode=8)

    def says(job: Json | None) -> bool:
        return "PodSecurity" in (job or {}).get("status", {}).get("message", "")

    job = site.wait("refused", says)
    assert "hostPath" in job["status"]["message"]
    assert not site.pods("refused")


def test_a_pool_without_a_profile_has_pods_that_every_namespace_accepts(site: Site) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    site.kube.patch("namespaces", site.namespace, {"metadata": {"labels": labels}})
    site.submit("plain", gpusPerNode=8)
    site.wait("plain", phase_is("Running"))
