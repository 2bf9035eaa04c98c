"""Programs of the hostile image (tests/rehearsal/hostile), and what each comes to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from drumline_contract import MAX_FIGURE, plain, plain_lines
from tests.e2e.hostile.bystanders import addresses, operators
from tests.e2e.hostile.tenant import SMALL, Tenant
from tests.e2e.rehearsals import Rehearsal
from tests.kube import Json, phase_is

RESULT_SECONDS = 60.0
FLOODED = 200
"""Connections to each place: more than it takes at a time."""
START_SECONDS = 20
LONGEST_GRACE = 20
"""preemptionSeconds of this installation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program.

    Attributes:
        start: submits its job; gets what it may know of the neighbour and the operator.
        check: what has to become of its job.
    """

    name: str
    start: Callable[[Tenant, Json], None]
    check: Callable[[Tenant], None]


def start_programs(tenant: Tenant, neighbour: Rehearsal) -> None:
    """All of them, at once."""
    plan = {
        "neighbours": addresses(neighbour.site.pods(neighbour.name)),
        "operators": addresses(operators(tenant.site.kube)),
    }
    for program in PROGRAMS:
        program.start(tenant, plan)


def _agent(name: str, check: Callable[[Tenant], None], **spec: Any) -> Program:
    def start(tenant: Tenant, plan: Json) -> None:
        tenant.plan(name, plan)
        tenant.run_agent(name, **spec)

    return Program(name=name, start=start, check=check)


def _template(name: str, check: Callable[[Tenant], None], **spec: Any) -> Program:
    def start(tenant: Tenant, plan: Json) -> None:
        tenant.plan(name, plan)
        tenant.run_program(name, **spec)

    return Program(name=name, start=start, check=check)


def _says_nothing(name: str) -> Callable[[Tenant], None]:
    """The job runs, as far as its kubelet can tell; nothing of what it says is believed."""

    def check(tenant: Tenant) -> None:
        status = tenant.site.wait(name, phase_is("Running"))["status"]
        assert not status.keys() & {"step", "loss", "checkpoint", "lastIncident"}

    return check


def _silent(tenant: Tenant) -> None:
    status = tenant.site.wait("silent", phase_is("Failed"), seconds=RESULT_SECONDS)["status"]
    assert status["reason"] == "StartFailed"
    assert "silent-0-g1" in status["message"]


def _progress(tenant: Tenant) -> None:
    status = tenant.site.wait("progress", _has("step"))["status"]
    for name in ("step", "totalSteps", "tokensPerSecond"):
        assert 0 <= status.get(name, 0) <= MAX_FIGURE * 10, status
    assert math.isfinite(float(status.get("loss", 0)))
    assert status["phase"] == "Running"
    assert "checkpoint" not in status or status["checkpoint"]["digest"].isprintable()


def _incidents(tenant: Tenant) -> None:
    status = tenant.site.wait("incidents", _has("lastIncident"))["status"]
    cause = status["lastIncident"]["cause"]
    assert cause == plain(cause)
    assert "owned" in cause


def _failed_plainly(name: str) -> Callable[[Tenant], None]:
    def check(tenant: Tenant) -> None:
        status = tenant.site.wait(name, phase_is("Failed"), seconds=RESULT_SECONDS)["status"]
        assert "owned" in status["message"]
        assert status["message"] == plain_lines(status["message"])

    return check


def _is_replaced_at_most(tenant: Tenant) -> None:
    """An agent that calls itself silent, as others would, is believed after a while."""
    job = tenant.site.wait("news", _has("phase"))
    assert job["status"]["phase"] not in {"Succeeded", "Failed"}
    assert job["status"].get("step", 1) == 1


def _deserted(tenant: Tenant) -> None:
    """A gang whose second member left at once has not succeeded."""
    job = tenant.site.kube.get("trainingjobs", "desert", tenant.site.namespace)
    assert job["status"]["phase"] in {"Starting", "Running", "Pending", "Failed"}


def _replayed(tenant: Tenant) -> None:
    answers = _result(tenant, "replay")
    assert len(answers) >= 18
    accepted = {name: code for name, code in answers.items() if isinstance(code, int)}
    assert accepted
    assert all(code >= 400 for code in accepted.values()), accepted


def _spied(tenant: Tenant) -> None:
    answers = _result(tenant, "spy")
    assert answers
    assert all(said.startswith("refused") for said in answers.values()), answers


def _flooded(tenant: Tenant) -> None:
    made = _result(tenant, "flood")
    assert min(made.values()) > FLOODED, made


def _forked(tenant: Tenant) -> None:
    """Its pod has the limit of a pod, and its grace period that of the installation."""
    assert "unavailable" in _result(tenant, "fork")["refusal"]
    (pod,) = tenant.site.pods("fork")
    assert pod["spec"]["terminationGracePeriodSeconds"] == LONGEST_GRACE


def _filled(tenant: Tenant) -> None:
    """Evicted by its kubelet for a limit of its own, it fails as it would by its own exit."""
    status = tenant.site.wait("fill", phase_is("Failed"), seconds=RESULT_SECONDS * 2)["status"]
    assert "ephemeral" in status["message"]


def _result(tenant: Tenant, name: str) -> Json:
    deadline = time.monotonic() + RESULT_SECONDS
    while (result := tenant.findings(name)) is None:
        if time.monotonic() > deadline:
            job = tenant.site.kube.get("trainingjobs", name, tenant.site.namespace)
            raise TimeoutError(f"{name} says nothing: {job.get('status')}")
        time.sleep(0.2)
    return result


def _has(key: str) -> Callable[[Json | None], bool]:
    return lambda job: key in (job or {}).get("status", {})


PROGRAMS = (
    _agent("silent", _silent, startDeadlineSeconds=START_SECONDS),
    *(
        _agent(name, _says_nothing(name))
        for name in ("garbage", "headers", "drip", "chunks", "gigabyte", "redirect")
    ),
    _agent("progress", _progress),
    _agent("news", _is_replaced_at_most),
    _agent("incidents", _incidents),
    _agent("report", _failed_plainly("report"), recovery={"maxRestarts": 0}),
    _agent("replay", _replayed),
    _agent("desert", _deserted, nodes=2),
    _template("curse", _failed_plainly("curse")),
    _template("spy", _spied),
    _template("flood", _flooded),
    _template(
        "fork",
        _forked,
        resources={"cpu": "100m", "memory": "1Gi"},
        terminationGracePeriodSeconds=3600,
    ),
    _template("fill", _filled, resources={**SMALL, "ephemeral-storage": "16Mi"}),
)
