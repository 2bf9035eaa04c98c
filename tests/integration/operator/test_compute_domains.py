"""Jobs with a ComputeDomain: a channel for each pod, on nodes that have one, and of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.operator import compute_domains
from tests.integration.operator.conftest import Site
from tests.integration.operator.dra import allocating_operator
from tests.kube import Json, Kube, phase_is, reason_is
from tests.operator_process import OperatorProcess
from tests.patience import HANG_SECONDS

pytestmark = [
    pytest.mark.usefixtures("no_operator"),
    pytest.mark.extended(keep=4, of="operators of a test"),
]


@pytest.fixture
def domains(site: Site, api: Kube) -> Iterator[Site]:
    """The site, of whose four nodes three have a channel."""
    compute_domains.install(api)
    slices = [compute_domains.channels_of(node) for node in site.nodes[:3]]
    for each in slices:
        api.ensure(each)
    yield site
    for each in slices:
        api.delete("resourceslices", each["metadata"]["name"])


@pytest.fixture
def operator(domains: Site, tmp_path: Path) -> Iterator[OperatorProcess]:
    """One that allocates devices."""
    with allocating_operator(domains.kube, tmp_path) as operator:
        yield operator


def domain_of(site: Site, job: str) -> Json:
    """The job's ComputeDomain, once it is there."""
    labels = f"drumline.dev/job={job}"
    (domain,) = site.kube.wait_all("computedomains", site.namespace, bool, labels=labels)
    return domain


def claims_of(site: Site, job: str) -> dict[str, Json]:
    """By node: the claim of the pod there."""
    owners = {pod["metadata"]["uid"]: pod["spec"]["nodeName"] for pod in site.pods(job)}
    return {
        owners[owner["uid"]]: claim
        for claim in site.kube.list("resourceclaims", site.namespace)
        for owner in claim["metadata"].get("ownerReferences", ())
        if owner["uid"] in owners
    }


@pytest.mark.usefixtures("operator")
def test_each_pod_gets_the_channel_of_its_node_and_a_node_has_one(domains: Site) -> None:
    domains.submit("pair", nodes=2, gpusPerNode=4, computeDomain={})
    domain = domain_of(domains, "pair")
    (owner,) = domain["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("TrainingJob", "pair")
    domains.kube.create(compute_domains.template_of(domain))
    domains.wait("pair", phase_is("Running"))
    claims = claims_of(domains, "pair")
    assert len(claims) == 2
    assert set(claims) < set(domains.nodes[:3])
    for node, claim in claims.items():
        devices = claim["status"]["allocation"]["devices"]
        (result,) = devices["results"]
        assert (result["pool"], result["device"]) == (node, "channel-0")
        (config,) = devices["config"]
        assert config["opaque"]["parameters"]["domainID"] == domain["metadata"]["uid"]
    # half of the GPUs of these nodes are free, but none of their channels
    domains.submit("second", nodes=2, gpusPerNode=4, computeDomain={})
    domains.wait("second", reason_is("InsufficientResources"))
    domains.submit("plain", nodes=4, gpusPerNode=4)
    domains.wait("plain", phase_is("Running"))
    domains.end_pods("pair")
    domains.kube.create(compute_domains.template_of(domain_of(domains, "second")))
    domains.wait("second", phase_is("Running"))


def test_no_channel_of_somebody_elses_domain_is_given(
    domains: Site, operator: OperatorProcess
) -> None:
    """Whoever may write templates in the namespace can be faster than the driver."""
    domains.submit("thief", nodes=2, computeDomain={})
    own = domain_of(domains, "thief")
    domains.kube.create(compute_domains.template_of(own, of_domain="of-somebody-else"))
    deadline = time.monotonic() + HANG_SECONDS
    while not any(line["event"] == "channel_of_another_domain" for line in operator.log):
        assert time.monotonic() < deadline
        time.sleep(0.2)  # a log cannot be watched
    assert all("nodeName" not in pod["spec"] for pod in domains.pods("thief"))
    for claim in domains.kube.list("resourceclaims", domains.namespace):
        assert "allocation" not in claim.get("status", {})
