"""Nodes are asked for waiting gangs, as one, and no more of them than the gang starts with.

A double plays cluster-autoscaler; what is said of seconds is its clock's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline_api.base import ANNOTATION_NODE_DEMAND, LABEL_NODE_DEMAND
from drumline_contract import Progress
from drumline_scheduler.model.autoscaling import ZONE_LABEL
from tests.integration.operator.autoscaling_crds import CRDS
from tests.integration.operator.cluster_autoscaler import (
    AGE_SECONDS,
    BOOKED_SECONDS,
    DRAIN_SECONDS,
    HOSTNAME,
    NAMESPACE,
    RETRY_SECONDS,
    SCAN_SECONDS,
    ClusterAutoscaler,
)
from tests.integration.operator.conftest import (
    HIGH,
    HIGH_CLASS,
    OperatorProcess,
    Site,
    a_claim,
    next_nodes,
    release_lease,
)
from tests.integration.operator.growing_pools import (
    LABEL,
    create_growing_pool,
    delete_growing_pool,
    keeping_pods,
)
from tests.integration.operator.trainers import Trainers
from tests.kube import Json, Kube, phase_is, ready, reason_is
from tests.operator_process import is_established

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.extended(keep=1)]

SCALE_UP_SECONDS = AGE_SECONDS + SCAN_SECONDS
"""After so long what can be had is there."""
UNNEEDED_SECONDS = 30.0
EPOCH = "1970-01-01T00:00:00Z"
GIVE_BACK_SECONDS = 2 * SCAN_SECONDS + UNNEEDED_SECONDS + DRAIN_SECONDS
"""After so long the nodes that nobody needs are gone."""


@dataclass(frozen=True, kw_only=True)
class GrowingSite:
    """A corner without nodes, and the autoscaler that may add some."""

    site: Site
    autoscaler: ClusterAutoscaler


Grow = Callable[..., GrowingSite]


@contextmanager
def a_growing_site(
    api: Kube, name: str, *, max_nodes: int, available: int, quota: int, timeout: int, mode: str
) -> Generator[GrowingSite]:
    labels = {LABEL: name}
    create_growing_pool(api, name, max_nodes=max_nodes, quota=quota, timeout=timeout, mode=mode)
    autoscaler = ClusterAutoscaler(
        kube=api,
        labels=labels,
        first=next_nodes(),
        most=available,
        unneeded_seconds=UNNEEDED_SECONDS,
        serves_requests=mode != "Placeholders",
    )
    site = Site(kube=api, namespace=name, pool=name, queue=name, nodes=())
    try:
        yield GrowingSite(site=site, autoscaler=autoscaler)
    finally:
        for node in autoscaler.nodes:
            api.delete("nodes", node)
        delete_growing_pool(api, name)


@pytest.fixture
def grow(api: Kube) -> Iterator[Grow]:
    """Makes the test's corner."""
    with ExitStack() as stack:

        def make(
            *,
            max_nodes: int = 32,
            available: int = 32,
            quota: int = 256,
            timeout: int = 600,
            mode: str = "Placeholders",
        ) -> GrowingSite:
            name = f"grow-{next_nodes()}"
            return stack.enter_context(
                a_growing_site(
                    api,
                    name,
                    max_nodes=max_nodes,
                    available=available,
                    quota=quota,
                    timeout=timeout,
                    mode=mode,
                )
            )

        yield make


def gave_up(job: Json | None) -> bool:
    """Whether it waits for something else."""
    return (job or {}).get("status", {}).get("reason") != "WaitingForNodes"


def give_up_after(site: Site, seconds: int) -> None:
    body = {"spec": {"autoscaling": {"timeoutSeconds": seconds}}}
    site.kube.patch("gpupools", site.pool, body)


def belongs_to(site: Site, item: Json) -> bool:
    """Whether the corner's pool owns what asks for nodes."""
    owners: list[Json] = item["metadata"].get("ownerReferences") or []
    return any((each["kind"], each["name"]) == ("GpuPool", site.pool) for each in owners)


def wait_asked(site: Site, plural: str) -> Json:
    """The only object of this kind that asks for nodes of the corner, once it is there."""

    def ours(items: list[Json]) -> list[Json]:
        return [each for each in items if belongs_to(site, each)]

    (asked,) = ours(site.kube.wait_all(plural, NAMESPACE, lambda items: bool(ours(items))))
    return asked


def wait_request(site: Site, job: str, *, instead_of: Json | None = None) -> Json:
    """The ProvisioningRequest for a job, once it is there and another one than before."""
    before = "" if instead_of is None else instead_of["metadata"]["uid"]
    uid = site.job(job)["metadata"]["uid"]

    def of_job(items: list[Json]) -> list[Json]:
        return [
            each
            for each in items
            if each["metadata"]["labels"].get(LABEL_NODE_DEMAND) == uid
            and each["metadata"]["uid"] != before
        ]

    (request,) = of_job(
        site.kube.wait_all("provisioningrequests", NAMESPACE, lambda items: bool(of_job(items)))
    )
    return request


def wait_withdrawn(site: Site, *plurals: str) -> None:
    """Until nothing of these kinds asks for nodes of the corner."""
    for plural in plurals:
        site.kube.wait_all(
            plural, NAMESPACE, lambda items: not any(belongs_to(site, each) for each in items)
        )


def came_and_went(site: Site, *, since: str, count: int) -> list[tuple[str, str]]:
    """Pods of the corner and placeholders of its pool, in order."""

    def counts(kind: str, pod: Json) -> bool:
        is_pod = pod["metadata"]["namespace"] == site.namespace
        return kind != "MODIFIED" and (is_pod or belongs_to(site, pod))

    events = site.kube.events_since(since, "pods", count=count, of=counts)
    return [(kind, pod["metadata"]["namespace"]) for kind, pod in events]


def test_a_gang_of_32_gets_32_nodes_from_none_and_nobody_over_the_quota_gets_any(
    grow: Grow,
) -> None:
    growing = grow(max_nodes=100, available=100)
    site, autoscaler = growing.site, growing.autoscaler
    site.submit("over", nodes=33, gpusPerNode=8)
    site.submit("gang", nodes=32, gpusPerNode=8)
    job = site.wait("gang", reason_is("WaitingForNodes"))
    site.submit("second", nodes=1, gpusPerNode=8)
    assert "starts with 32 more nodes of pool" in job["status"]["message"]
    autoscaler.wait_placeholders(32)
    assert autoscaler.advance(AGE_SECONDS) == 0  # they are new
    before = site.kube.version("pods")
    assert autoscaler.advance(SCAN_SECONDS) == 32
    site.wait("gang", phase_is("Running"))
    autoscaler.wait_placeholders(0)
    # An autoscaler that looks meanwhile sees pods or placeholders, never both.
    assert came_and_went(site, since=before, count=64) == (
        [("DELETED", NAMESPACE)] * 32 + [("ADDED", site.namespace)] * 32
    )
    assert {pod["spec"]["nodeName"] for pod in site.pods("gang")} == set(autoscaler.nodes)
    site.wait("over", reason_is("ExceedsQuota"))
    site.wait("second", reason_is("QuotaExhausted"))
    assert autoscaler.advance(2 * GIVE_BACK_SECONDS) == 0
    assert len(autoscaler.nodes) == 32
    site.kube.delete("trainingjobs", "second", site.namespace)
    site.kube.delete("trainingjobs", "over", site.namespace)
    site.end_pods("gang")
    site.wait("gang", phase_is("Succeeded"))
    assert autoscaler.advance(GIVE_BACK_SECONDS) == 0
    assert autoscaler.nodes == []
    assert autoscaler.added == 32


def test_20_of_32_nodes_are_given_back_within_a_minute_of_the_timeout(grow: Grow) -> None:
    growing = grow(available=20)
    site, autoscaler = growing.site, growing.autoscaler
    site.submit("gang", nodes=32, gpusPerNode=8)
    autoscaler.wait_placeholders(32)
    assert autoscaler.advance(SCALE_UP_SECONDS) == 20
    assert autoscaler.advance(600 - SCALE_UP_SECONDS) == 0
    assert len(autoscaler.nodes) == 20  # they are kept for it
    give_up_after(site, 2)
    autoscaler.wait_placeholders(0)
    job = site.wait("gang", gave_up)
    assert job["status"]["phase"] == "Pending"
    assert site.pods("gang") == []
    assert autoscaler.advance(60) == 0
    assert autoscaler.nodes == []
    # Fewer may be asked for at once. This gang would ask again after a pause.
    site.kube.delete("trainingjobs", "gang", site.namespace)
    give_up_after(site, 600)
    site.kube.wait("gpupools", site.pool, None, ready("True", "Accepted"))
    site.submit("smaller", nodes=4, gpusPerNode=8)
    autoscaler.wait_placeholders(4)
    assert autoscaler.advance(SCALE_UP_SECONDS) == 4
    site.wait("smaller", phase_is("Running"))


def test_of_two_gangs_that_race_for_too_few_nodes_one_starts_and_then_the_other(
    grow: Grow,
) -> None:
    growing = grow(available=4)
    site, autoscaler = growing.site, growing.autoscaler
    for name in ("left", "right"):
        site.submit(name, nodes=4, gpusPerNode=8)
    autoscaler.wait_placeholders(8)
    assert autoscaler.advance(SCALE_UP_SECONDS) == 4
    autoscaler.wait_placeholders(4)
    jobs = site.kube.wait_all(
        "trainingjobs", site.namespace, lambda jobs: any(map(phase_is("Running"), jobs))
    )
    (runs,) = [job["metadata"]["name"] for job in jobs if phase_is("Running")(job)]
    (waiting,) = {"left", "right"} - {runs}
    assert site.pods(waiting) == []
    site.end_pods(runs)
    site.wait(runs, phase_is("Succeeded"))
    site.wait(waiting, phase_is("Running"))
    autoscaler.wait_placeholders(0)
    assert autoscaler.added == 4


def _three_run_on_new_nodes(gang: Trainers, autoscaler: ClusterAutoscaler) -> None:
    gang.submit(nodes=3)
    autoscaler.wait_placeholders(3)
    assert autoscaler.advance(SCALE_UP_SECONDS) == 3
    gang.attend("0-g1", "1-g1", "2-g1")
    gang.running(1)
    autoscaler.wait_placeholders(0)


def test_a_reclaimed_node_is_replaced_and_training_goes_on(grow: Grow) -> None:
    growing = grow()
    site, autoscaler = growing.site, growing.autoscaler
    site.kube.create(a_claim("checkpoints", namespace=site.namespace))
    with Trainers(site, "gang") as gang:
        _three_run_on_new_nodes(gang, autoscaler)
        before = gang.uids()
        lost = site.kube.get("pods", "gang-2-g1", site.namespace)["spec"]["nodeName"]
        autoscaler.lose(lost)
        autoscaler.wait_placeholders(1)
        assert autoscaler.advance(SCALE_UP_SECONDS) == 1
        gang.attend("0-g1", "1-g1", "2-g2")
        gang.running(2)
        assert gang.uids().items() >= {n: before[n] for n in ("gang-0-g1", "gang-1-g1")}.items()
        autoscaler.wait_placeholders(0)
    assert autoscaler.added == 4


def test_a_node_is_asked_for_at_the_notice_and_the_gang_moves_before_the_old_one_goes(
    grow: Grow,
) -> None:
    growing = grow()
    site, autoscaler = growing.site, growing.autoscaler
    site.kube.create(a_claim("checkpoints", namespace=site.namespace))
    with Trainers(site, "gang", saves=Progress(step=42, checkpoint_step=42)) as gang:
        _three_run_on_new_nodes(gang, autoscaler)
        going = site.kube.get("pods", "gang-2-g1", site.namespace)["spec"]["nodeName"]
        autoscaler.announce(going)
        autoscaler.wait_placeholders(1)
        gang.running(1)  # on all of its nodes
        assert autoscaler.advance(SCALE_UP_SECONDS) == 1
        gang.attend("0-g1", "1-g1", "2-g2")
        status = gang.running(2)["status"]
        assert (status["restarts"], status["checkpoint"]["step"]) == (0, 42)
        assert site.kube.get("pods", "gang-2-g2", site.namespace)["spec"]["nodeName"] != going
        autoscaler.wait_placeholders(0)
        autoscaler.lose(going)
    assert autoscaler.added == 4


def test_a_free_node_is_kept_from_the_autoscaler_while_a_victim_on_another_one_saves(
    grow: Grow,
) -> None:
    growing = grow(max_nodes=2, available=2)
    site, autoscaler = growing.site, growing.autoscaler
    site.kube.ensure(HIGH_CLASS)
    site.kube.create(a_claim("checkpoints", namespace=site.namespace))
    site.submit("quick", nodes=1, gpusPerNode=8)
    with Trainers(site, "slow") as slow:
        slow.submit(nodes=1)
        autoscaler.wait_placeholders(2)
        assert autoscaler.advance(SCALE_UP_SECONDS) == 2
        site.wait("quick", phase_is("Running"))
        slow.attend("0-g1")
        slow.running(1)
        autoscaler.wait_placeholders(0)
        (freed,) = [pod["spec"]["nodeName"] for pod in site.pods("quick")]
        site.submit("high", nodes=2, gpusPerNode=8, priorityClassName=HIGH)
        slow.noticed("0-g1")

        def is_kept(pods: list[Json]) -> bool:
            return [
                pod["spec"]["nodeSelector"][HOSTNAME] for pod in keeping_pods(site.namespace, pods)
            ] == [freed]

        site.kube.wait_all("pods", NAMESPACE, is_kept)
        autoscaler.wait_placeholders(1)  # it is marked
        assert autoscaler.advance(2 * GIVE_BACK_SECONDS) == 0
        assert len(autoscaler.nodes) == 2
        slow.saved(step=30)
        site.wait("high", phase_is("Running"))
        autoscaler.wait_placeholders(0)
        assert autoscaler.advance(SCALE_UP_SECONDS) == 0
    assert autoscaler.added == 2


def test_of_placeholders_that_a_quota_lets_in_in_part_none_stays_and_the_job_says_why(
    grow: Grow,
) -> None:
    growing = grow()
    site, autoscaler = growing.site, growing.autoscaler
    name = f"quota-{site.namespace}"
    site.kube.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"hard": {"requests.nvidia.com/gpu": "8"}},
        }
    )
    try:
        site.kube.wait("resourcequotas", name, NAMESPACE, is_enforced)
        site.submit("gang", nodes=2, gpusPerNode=8)

        def says_why(job: Json | None) -> bool:
            message = (job or {}).get("status", {}).get("message", "")
            return (
                gave_up(job)
                and "the API server rejects its placeholders" in message
                and name in message
            )

        site.wait("gang", says_why)
        autoscaler.wait_placeholders(0)
        assert autoscaler.advance(SCALE_UP_SECONDS) == 0
    finally:
        site.kube.delete("resourcequotas", name, NAMESPACE)


def is_enforced(quota: Json | None) -> bool:
    return bool((quota or {}).get("status", {}).get("hard"))


def test_a_new_leader_goes_on_with_what_was_asked(grow: Grow, operator: OperatorProcess) -> None:
    growing = grow()
    site, autoscaler = growing.site, growing.autoscaler
    site.submit("gang", nodes=2, gpusPerNode=8)
    site.submit("gone", nodes=1, gpusPerNode=8)
    autoscaler.wait_placeholders(3)
    before = {pod["metadata"]["uid"] for pod in autoscaler.placeholders()}
    operator.kill()
    release_lease(site.kube)
    site.kube.delete("trainingjobs", "gone", site.namespace)
    operator.start()
    autoscaler.wait_placeholders(2)
    assert {pod["metadata"]["uid"] for pod in autoscaler.placeholders()} < before
    autoscaler.advance(SCALE_UP_SECONDS)
    site.wait("gang", phase_is("Running"))
    wait_withdrawn(site, "pods")


def test_how_long_nodes_took_is_known_to_a_new_leader_and_says_when_they_will_be_there(
    grow: Grow, operator: OperatorProcess
) -> None:
    growing = grow()
    site, autoscaler = growing.site, growing.autoscaler
    site.submit("first", nodes=1, gpusPerNode=8)
    job = site.wait("first", reason_is("WaitingForNodes"))
    assert "expectedStart" not in job["status"]
    autoscaler.wait_placeholders(1)
    autoscaler.advance(SCALE_UP_SECONDS)
    site.wait("first", phase_is("Running"))

    def has_learned(pool: Json | None) -> bool:
        known = (pool or {}).get("status", {}).get("autoscaling", {})
        return len(known.get("startSeconds", ())) == 1

    site.kube.wait("gpupools", site.pool, None, has_learned)
    operator.kill()
    release_lease(site.kube)
    # as if three jobs had waited as long as nodes of a cloud take
    learned = {"autoscaling": {"startSeconds": [500, 600, 900]}}
    site.kube.patch_status("gpupools", site.pool, learned, None)
    operator.start()
    site.submit("next", nodes=1, gpusPerNode=8)

    def is_expected_by_its_nodes(job: Json | None) -> bool:
        """Half of the three took 600 s at most, all of them 900 s."""
        status = (job or {}).get("status", {})
        ends = [parse_timestamp(status.get(f"expectedStart{by}", EPOCH)) for by in ("", "By")]
        return ends[1] - ends[0] == 300 and status.get("reason") == "WaitingForNodes"

    site.wait("next", is_expected_by_its_nodes)


def as_if_asked_earlier(placeholders: list[Json], *, seconds: float, kube: Kube) -> None:
    """Change when their demand was made, for the next leader."""
    for pod in placeholders:
        text = pod["metadata"]["annotations"][ANNOTATION_NODE_DEMAND]
        if text.startswith("{"):  # the others name it
            record = json.loads(text)
            record["asked_at"] -= seconds
            annotations = {ANNOTATION_NODE_DEMAND: json.dumps(record)}
            body = {"metadata": {"annotations": annotations}}
            kube.patch("pods", pod["metadata"]["name"], body, NAMESPACE)


def test_all_nodes_come_in_one_zone_and_after_a_timeout_in_the_next(
    api: Kube, operator: OperatorProcess
) -> None:
    name, zones = f"grow-{next_nodes()}", ("zone-a", "zone-b")
    create_growing_pool(api, name, max_nodes=32, quota=256, timeout=600, zones=zones)
    site = Site(kube=api, namespace=name, pool=name, queue=name, nodes=())
    first, second = (
        ClusterAutoscaler(
            kube=api, labels={LABEL: name, ZONE_LABEL: zone}, first=next_nodes(), most=most
        )
        for zone, most in (("zone-a", 1), ("zone-b", 8))
    )
    try:
        site.submit("gang", nodes=2, gpusPerNode=8)
        first.wait_placeholders(2)
        assert first.advance(SCALE_UP_SECONDS) == 1
        assert second.placeholders() == []
        operator.kill()
        release_lease(api)
        as_if_asked_earlier(first.placeholders(), seconds=600, kube=api)
        operator.start()
        second.wait_placeholders(2)
        first.wait_placeholders(0)
        site.submit("next", nodes=2, gpusPerNode=8)
        second.wait_placeholders(4)  # zone-a is to grow as far only after a pause
        assert second.advance(SCALE_UP_SECONDS) == 4
        for job in ("gang", "next"):
            site.wait(job, phase_is("Running"))
        used = {pod["spec"]["nodeName"] for job in ("gang", "next") for pod in site.pods(job)}
        assert used <= {*first.nodes, *second.nodes}

        def says_where_none_came(pool: Json | None) -> bool:
            known = (pool or {}).get("status", {}).get("autoscaling", {})
            pauses = known.get("pauses", ())
            return [(each["zone"], each["timeouts"]) for each in pauses] == [("zone-a", 1)]

        api.wait("gpupools", name, None, says_where_none_came)
    finally:
        for node in (*first.nodes, *second.nodes):
            api.delete("nodes", node)
        delete_growing_pool(api, name)


@pytest.fixture
def autoscaling_kinds(api: Kube) -> None:
    """The cluster serves ProvisioningRequests and CapacityBuffers."""
    for crd in CRDS:
        api.ensure(crd)
        name = crd["metadata"]["name"]
        api.wait("customresourcedefinitions", name, None, is_established)


@pytest.mark.usefixtures("autoscaling_kinds")
def test_a_request_gets_all_nodes_or_none_and_its_booking_ends_with_the_start(grow: Grow) -> None:
    growing = grow(available=3, mode="ProvisioningRequest")
    site, autoscaler = growing.site, growing.autoscaler
    site.submit("gang", nodes=4, gpusPerNode=8)
    spec = wait_asked(site, "provisioningrequests")["spec"]
    assert spec["provisioningClassName"] == "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
    assert spec["parameters"] == {"ValidUntilSeconds": "600"}
    assert [each["count"] for each in spec["podSets"]] == [4]
    assert autoscaler.advance(SCAN_SECONDS) == 0
    autoscaler.most = 4
    assert autoscaler.advance(RETRY_SECONDS + SCAN_SECONDS) == 4
    site.wait("gang", phase_is("Running"))
    wait_withdrawn(site, "provisioningrequests", "podtemplates")
    # With the request there the pods would be imagined on other nodes than their own.
    assert autoscaler.advance(GIVE_BACK_SECONDS) == 0
    site.end_pods("gang")
    site.wait("gang", phase_is("Succeeded"))
    autoscaler.advance(GIVE_BACK_SECONDS)
    assert autoscaler.nodes == []


@pytest.mark.usefixtures("autoscaling_kinds")
def test_a_request_is_withdrawn_with_its_templates(grow: Grow) -> None:
    growing = grow(available=3, mode="ProvisioningRequest")
    site = growing.site
    site.submit("gang", nodes=4, gpusPerNode=8)
    wait_asked(site, "provisioningrequests")
    give_up_after(site, 1)
    wait_withdrawn(site, "provisioningrequests", "podtemplates")
    site.wait("gang", gave_up)


@pytest.mark.usefixtures("autoscaling_kinds")
def test_an_expired_booking_is_made_anew_and_a_failed_request_is_given_up_at_once(
    grow: Grow,
) -> None:
    growing = grow(available=4, mode="ProvisioningRequest")
    site, autoscaler = growing.site, growing.autoscaler
    autoscaler.startup_taint = "startup-taint.cluster-autoscaler.kubernetes.io/driver"
    # it comes first, whatever the watch shows first
    site.kube.ensure(HIGH_CLASS)
    site.submit("gang", nodes=4, gpusPerNode=8, priorityClassName=HIGH)
    booked = wait_request(site, "gang")
    assert autoscaler.advance(SCAN_SECONDS) == 4
    autoscaler.advance(BOOKED_SECONDS)  # they are not set up by then
    site.submit("next", nodes=1, gpusPerNode=8)
    again = wait_request(site, "gang", instead_of=booked)
    assert again["spec"] == booked["spec"]
    assert autoscaler.advance(SCAN_SECONDS) == 0  # and are booked for it once more
    autoscaler.tell(wait_request(site, "next"), "Failed", "True", "MaxAttemptsReached")
    autoscaler.set_up()
    site.wait("gang", phase_is("Running"))
    site.wait("next", gave_up)  # its timeout is ten minutes
    wait_withdrawn(site, "provisioningrequests", "podtemplates")


@pytest.mark.usefixtures("autoscaling_kinds")
def test_a_buffer_is_gone_before_it_would_be_filled_again(grow: Grow) -> None:
    growing = grow(mode="CapacityBuffer")
    site, autoscaler = growing.site, growing.autoscaler
    site.submit("gang", nodes=2, gpusPerNode=8)
    assert wait_asked(site, "capacitybuffers")["spec"]["replicas"] == 2
    assert autoscaler.advance(SCAN_SECONDS) == 2
    site.wait("gang", phase_is("Running"))
    wait_withdrawn(site, "capacitybuffers", "podtemplates")
    assert autoscaler.advance(GIVE_BACK_SECONDS) == 0
    assert len(autoscaler.nodes) == 2
