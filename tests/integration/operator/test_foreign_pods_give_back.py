"""An inference Deployment borrows GPUs; a job whose queue lent them gets them back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.operator.chart_rights import token_of
from tests.integration.operator.conftest import Site
from tests.integration.operator.proxy import Proxy
from tests.kube import Json, phase_is
from tests.operator_process import OperatorProcess

pytestmark = [
    pytest.mark.usefixtures("no_operator"),
    pytest.mark.extended(keep=4, of="operators of a test"),
]


def queue(name: str, pool: str, *, gpus: int, parent: str | None = None, evict: bool) -> Json:
    foreign = {"foreignPods": {"borrowed": "Evict"}} if evict else {}
    above = {"parent": parent} if parent else {}
    return {
        "apiVersion": "drumline.dev/v1alpha1",
        "kind": "TrainingQueue",
        "metadata": {"name": name},
        "spec": {"quotas": [{"gpuPool": pool, "nominalGpus": gpus}], **above, **foreign},
    }


@pytest.fixture
def serving(site: Site) -> Iterator[str]:
    """The site's queue lends 16 of its 32 GPUs to a queue with 16 of its own."""
    whole, serving = f"{site.queue}-all", f"{site.queue}-serving"
    site.kube.create(queue(whole, site.pool, gpus=0, evict=False))
    body = {"spec": queue(site.queue, site.pool, gpus=16, parent=whole, evict=False)["spec"]}
    site.kube.patch("trainingqueues", site.queue, body)
    site.kube.create(queue(serving, site.pool, gpus=16, parent=whole, evict=True))
    yield serving
    site.kube.delete("trainingqueues", serving)
    site.kube.delete("trainingqueues", whole)


def deployment(site: Site, queue: str) -> Json:
    """Four servers of 8 GPUs, as many as there are."""
    container = {
        "name": "server",
        "image": "any:1",
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat", "namespace": site.namespace},
        "spec": {
            "replicas": 4,
            "selector": {"matchLabels": {"app": "chat"}},
            "template": {
                "metadata": {"labels": {"app": "chat", "drumline.dev/queue": queue}},
                "spec": {
                    "nodeSelector": {"drumline.test/site": site.namespace},
                    "terminationGracePeriodSeconds": 0,
                    "containers": [container],
                },
            },
        },
    }


def bound(pods: list[Json]) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")]


def test_a_deployment_gives_back_what_it_borrowed_and_keeps_its_own(
    site: Site, serving: str, tmp_path: Path
) -> None:
    rights = (f"guardedPools={{{site.pool}}}", "foreignPods.evict=true")
    with (
        token_of(site.kube, "drumline-operator", *rights) as token,
        Proxy(site.kube.kubeconfig, tmp_path, token=token) as proxy,
    ):
        settings = {"DRUMLINE_GUARDED_POOLS": site.pool}
        operator = OperatorProcess(kubeconfig=proxy.kubeconfig, folder=tmp_path, settings=settings)
        operator.start()
        try:
            text = json.dumps(deployment(site, serving)).encode()
            site.kube.create_text("deployments", site.namespace, text)
            site.kube.wait("trainingqueues", serving, None, holds(32))
            site.submit("ours", nodes=2, gpusPerNode=8)
            site.wait("ours", phase_is("Running"))
            site.kube.wait_all(  # the Deployment made two new ones, which wait
                "pods",
                site.namespace,
                lambda pods: (len(bound(pods)), len(pods)) == (2, 4),
                labels="app=chat",
            )
        finally:
            site.kube.delete("deployments", "chat", site.namespace)
            operator.stop()
    assert proxy.refused == []


def holds(gpus: int) -> Callable[[Json | None], bool]:
    def held(queue: Json | None) -> bool:
        usage: list[Json] = (queue or {}).get("status", {}).get("usage") or []
        return [each.get("foreignGpus") for each in usage] == [gpus]

    return held
