"""A namespaced user plays malicious specs and hostile images: each is answered, nobody is harmed.

All of them at once, beside a job of another namespace that has to train on as if nothing happened.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from drumline_contract import plain
from tests.e2e.hostile import bystanders
from tests.e2e.hostile.bystanders import Life
from tests.e2e.hostile.deeds import DEEDS, Deed, forget_pods
from tests.e2e.hostile.programs import PROGRAMS, Program, start_programs
from tests.e2e.hostile.specs import (
    OTHER_POOL,
    PRIVATE_QUEUE,
    QUEUE,
    SPECS,
    Fails,
    Ignored,
    Refused,
    Runs,
    Spec,
    Waits,
)
from tests.e2e.hostile.tenant import Tenant, allow
from tests.e2e.rehearsals import Rehearsal
from tests.e2e.site import POOL, Site, close_site, open_site
from tests.kube import Json, Kube, phase_is, reason_is
from tools.cluster import Cluster, kubectl
from tools.cluster.nodes import offer_gpus

GPUS_A_NODE = 12
ANSWER_SECONDS = 60.0
"""Until status says what is wrong with an object; a start that fails takes 30 s of it."""
OPERATOR_MEBIBYTES = 250
"""The most memory that a process of the operator may ever have resident."""
DEEPEST = 20_000
API = "drumline.dev/v1alpha1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """Everything is played; it goes on."""

    tenant: Tenant
    neighbour: Rehearsal
    began: float
    before: Life
    step: int
    """Of the neighbour, when it began."""


def _offer(cluster: Cluster, kube: Kube, count: int) -> None:
    for node in cluster.nodes:
        offer_gpus(cluster, node, count)
    kube.wait_all(
        "nodes",
        None,
        lambda nodes: all(_gpus(node) == str(count) for node in nodes),
        labels="nvidia.com/gpu.present=true",
    )


def _gpus(node: Json) -> str:
    return node["status"]["allocatable"].get("nvidia.com/gpu", "0")


@pytest.fixture(scope="module")
def tenant(cluster: Cluster, drumline: Kube, stage: Site, deep_json: None) -> Iterator[Tenant]:
    """The user's namespace, with a queue of its own."""
    assert deep_json is None
    site = open_site(cluster, drumline)
    _make_platform(site, neighbour=stage.namespace)
    allowed = allow(site)
    yield allowed
    allowed.kube.close()
    allowed.colleague.close()
    forget_pods(site)
    close_site(site)
    kubectl(cluster, "delete", "trainingqueue", QUEUE, PRIVATE_QUEUE)
    kubectl(cluster, "delete", "gpupool", OTHER_POOL)


def _make_platform(site: Site, *, neighbour: str) -> None:
    quotas = [{"gpuPool": POOL, "nominalGpus": 3 * GPUS_A_NODE}]
    for kind, name, spec in (
        ("TrainingQueue", QUEUE, {"quotas": quotas, "namespaces": [site.namespace]}),
        ("TrainingQueue", PRIVATE_QUEUE, {"quotas": quotas, "namespaces": [neighbour]}),
        ("GpuPool", OTHER_POOL, {"nodeSelector": {"team": "other"}}),
    ):
        site.kube.ensure(
            {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}
        )


@pytest.fixture(scope="module")
def deep_json() -> Iterator[None]:
    """Python's decoder reads objects that are nested as deep as the API server takes them."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(DEEPEST)
    yield
    sys.setrecursionlimit(usual)


@pytest.fixture(scope="module")
def attack(cluster: Cluster, drumline: Kube, stage: Site, tenant: Tenant) -> Iterator[Attack]:
    """All specs, deeds and programs, at once; as many devices as they want at the same time."""
    _offer(cluster, drumline, GPUS_A_NODE)
    neighbour = bystanders.start_neighbour(stage)
    before, step = bystanders.life_of(neighbour), neighbour.last_step()
    began = time.time()
    start_programs(tenant, neighbour)
    for spec in SPECS:
        tenant.play(spec)
    for deed in DEEDS:
        deed.begin(tenant, neighbour)
    yield Attack(tenant=tenant, neighbour=neighbour, began=began, before=before, step=step)
    close_site(stage)
    _offer(cluster, drumline, cluster.nodes[0].gpus)


@pytest.mark.usefixtures("attack")
def test_a_job_of_another_namespace_is_decided_meanwhile(stage: Site) -> None:
    bystanders.prompt(stage, "prompt")


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_malicious_spec_is_answered(attack: Attack, spec: Spec) -> None:
    refusal = attack.tenant.refusals.get(spec.name)
    if isinstance(spec.expects, Refused):
        assert refusal is not None
        assert refusal.code in {400, 413, 422}, refusal
        assert all(words in refusal.message for words in spec.expects.said), refusal
        return
    assert refusal is None
    _answered(attack.tenant.site, spec)


def _answered(site: Site, spec: Spec) -> None:
    match spec.expects:
        case Waits(reason, said):
            status = site.wait(spec.name, reason_is(reason), seconds=ANSWER_SECONDS)["status"]
            assert site.pods(spec.name) == []
        case Fails(reason, said):
            failed = site.wait(spec.name, phase_is("Failed"), seconds=ANSWER_SECONDS)
            status = failed["status"]
            assert status["reason"] == reason
        case Runs():
            status, said = site.wait(spec.name, phase_is("Running"))["status"], ()
        case Ignored():
            assert "status" not in site.kube.get("trainingjobs", spec.name, site.namespace)
            assert site.pods(spec.name) == []
            return
        case Refused():
            raise AssertionError(spec.name)
    assert all(words in status["message"] for words in said), status["message"]
    assert status["message"] == plain(status["message"])


@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.name)
def test_a_malicious_deed_comes_to_nothing(attack: Attack, deed: Deed) -> None:
    deed.check(attack.tenant, attack.neighbour)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_hostile_program_is_its_own_jobs_loss(attack: Attack, program: Program) -> None:
    program.check(attack.tenant)


def test_the_neighbour_was_served_a_store_while_it_was_spied_upon(attack: Attack) -> None:
    assert bystanders.serves_store(attack.neighbour)


@pytest.mark.usefixtures("attack")
def test_a_job_of_another_namespace_is_decided_after_all_of_it(stage: Site) -> None:
    bystanders.prompt(stage, "prompt-again")


def test_everything_of_the_user_is_gone_when_it_is_deleted(attack: Attack) -> None:
    site = attack.tenant.site
    for job in site.kube.list("trainingjobs", site.namespace):
        attack.tenant.kube.delete("trainingjobs", job["metadata"]["name"], site.namespace)
    forget_pods(site)
    site.kube.wait_all("pods", site.namespace, lambda pods: not pods, seconds=90)


def test_nobody_was_harmed(attack: Attack, cluster: Cluster, drumline: Kube) -> None:
    attack.neighbour.goes_on()
    peaks = bystanders.peak_mebibytes(cluster, drumline)
    print(f"{len(SPECS) + len(DEEDS)} specs, {len(PROGRAMS)} programs; operator MiB: {peaks}")
    assert bystanders.life_of(attack.neighbour) == attack.before
    assert attack.neighbour.last_step() > attack.step
    assert bystanders.errors(cluster, drumline, since=attack.began) == []
    assert max(peaks.values()) < OPERATOR_MEBIBYTES
