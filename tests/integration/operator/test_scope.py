"""Two installations in one cluster, with the chart's rights and namespaces of their own.

Each runs the jobs of its namespaces on its pools; neither is refused anything, writes anywhere
else, or gives away GPUs that somebody else's pods hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from drumline_api.base import LABEL_INSTALLATION
from tests.integration.operator.chart_rights import token_of
from tests.integration.operator.conftest import Site, a_site
from tests.integration.operator.proxy import Proxy
from tests.kube import Json, Kube, phase_is
from tests.operator_process import OperatorProcess

pytestmark = [
    pytest.mark.usefixtures("no_operator"),
    pytest.mark.extended(keep=4, of="operators of a test"),
]


@dataclass(frozen=True, kw_only=True)
class Installation:
    """One of them: where its jobs are, what it wrote, and the process."""

    site: Site
    system: str
    proxy: Proxy
    operator: OperatorProcess


@pytest.fixture
def installations(api: Kube, tmp_path: Path) -> Iterator[tuple[Installation, Installation]]:
    """One for each of two namespaces, pools and queues."""
    with ExitStack() as stack:
        yield (
            _install(api, "one", folder=tmp_path, stack=stack),
            _install(api, "other", folder=tmp_path, stack=stack),
        )


def _install(api: Kube, name: str, *, folder: Path, stack: ExitStack) -> Installation:
    site = stack.enter_context(a_site(api))
    for plural in ("gpupools", "trainingqueues"):
        api.patch(plural, site.pool, {"metadata": {"labels": {LABEL_INSTALLATION: name}}})
    system = f"{site.namespace}-system"
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": system}})
    (folder / name).mkdir()
    token = token_of(
        api,
        f"{name}-drumline-operator",
        f"watchNamespaces={{{site.namespace}}}",
        f"installation={name}",
        release=name,
        namespace=system,
    )
    proxy = Proxy(api.kubeconfig, folder / name, token=stack.enter_context(token))
    stack.enter_context(proxy)
    operator = OperatorProcess(
        kubeconfig=proxy.kubeconfig,
        folder=folder / name,
        settings={
            "DRUMLINE_NAMESPACE": system,
            "DRUMLINE_WATCH_NAMESPACES": site.namespace,
            "DRUMLINE_INSTALLATION": name,
        },
    )
    operator.start()
    stack.callback(operator.stop)
    return Installation(site=site, system=system, proxy=proxy, operator=operator)


def test_two_installations_do_not_disturb_each_other(
    api: Kube, installations: tuple[Installation, Installation]
) -> None:
    api.ensure({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "nobodys"}})
    first, second = installations
    _submit_elsewhere(first.site, "nobodys")
    foreign = _hold_a_node(api, first.site)
    api.wait("gpupools", first.site.pool, None, _uses(8))  # pods and jobs come by different watches
    for each, gpus in zip(installations, (16 + 8, 16), strict=True):
        each.site.submit("works", nodes=2, gpusPerNode=8, ttlSecondsAfterFinished=1)
        each.site.wait("works", phase_is("Running"))
        api.wait("gpupools", each.site.pool, None, _uses(gpus))
    # three nodes of its four are left, and two of these train
    first.site.submit("waits", nodes=2, gpusPerNode=8)
    first.site.wait("waits", phase_is("Pending"))
    second.site.submit("fits", nodes=2, gpusPerNode=8)
    second.site.wait("fits", phase_is("Running"))
    api.delete("pods", foreign, "nobodys", grace=0)
    first.site.wait("waits", phase_is("Running"))
    for each in installations:
        each.site.end_pods("works")
        api.wait("trainingjobs", "works", each.site.namespace, lambda job: job is None)
        assert each.proxy.refused == []
        assert _namespaces(each.proxy) == {each.site.namespace, each.system, None}
        assert _pools(each.proxy) == {each.site.pool}
    assert "status" not in api.get("trainingjobs", "elsewhere", "nobodys")
    api.delete("trainingjobs", "elsewhere", "nobodys")


def _uses(gpus: int) -> Callable[[Json | None], bool]:
    return lambda pool: (pool or {}).get("status", {}).get("usedGpus") == gpus


def _submit_elsewhere(site: Site, namespace: str) -> None:
    spec = {"queue": site.queue, "gpuPool": site.pool, "nodes": 1, "gpusPerNode": 1}
    site.kube.create(
        {
            "apiVersion": "drumline.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "elsewhere", "namespace": namespace},
            "spec": {**spec, "template": {"image": "any:1", "command": ["true"]}},
        }
    )


def _hold_a_node(api: Kube, site: Site) -> str:
    """All GPUs of a node of this pool, by a pod in a namespace that no installation writes to."""
    limits = {"nvidia.com/gpu": "8"}
    container = {"name": "main", "image": "any:1", "resources": {"limits": limits}}
    name = f"holds-{site.namespace}"
    api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "nobodys"},
            "spec": {
                "nodeName": site.nodes[0],
                "containers": [container],
                "tolerations": [{"operator": "Exists"}],
                "automountServiceAccountToken": False,
            },
        }
    )
    return name


def _pools(proxy: Proxy) -> set[str]:
    """Whose statuses it wrote."""
    parts = [write.path.strip("/").split("/") for write in proxy.writes]
    return {path[path.index("gpupools") + 1] for path in parts if "gpupools" in path}


def _namespaces(proxy: Proxy) -> set[str | None]:
    """Where it wrote; None: objects of the cluster."""
    parts = [write.path.strip("/").split("/") for write in proxy.writes]
    return {path[path.index("namespaces") + 1] if "namespaces" in path else None for path in parts}
