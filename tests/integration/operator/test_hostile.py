"""What one tenant writes stops nobody: objects of a namespaced user against the real API server."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from drumline_api.spec_policy import NAME, spec_policy
from tests.integration.operator.conftest import Site, once_allowed, once_refused
from tests.kube import Kube, phase_is, reason_is
from tests.texts import missing

pytestmark = [
    pytest.mark.usefixtures("operator"),
    pytest.mark.extended(keep=5, of="corners of a cluster"),
]

NBSP = "\N{NO-BREAK SPACE}"
PIPELINE: dict[str, Any] = {"pipeline": 2}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_hostile_specs_say_what_is_wrong_and_another_job_runs(site: Site) -> None:
    trainers: dict[str, tuple[Any, str]] = {
        "hang": (
            {"global_batch_size": 9_000_000_000_000_000},
            "global_batch_size: must be at most",
        ),
        "zero": ({"global_batch_size": 1}, "global_batch_size: 1 does not split"),
        "deep": ({"a": nested(900)}, "trainer.overrides: nested more than 16 levels deep"),
        # of a larger one the API server itself takes many seconds to write a status
        "wide": ({"a": [[]] * 8000}, "trainer.overrides: 24007 bytes as JSON is over 16384"),
        "odd": ({"\x1b[2J": 1}, "[2J: unknown field"),
    }
    for name, (overrides, _) in trainers.items():
        trainer = {"globalBatchSize": 8, "parallelism": PIPELINE, "overrides": overrides}
        site.submit(name, nodes=2, gpusPerNode=4, trainer=trainer)
    site.submit("fine", nodes=1, gpusPerNode=8, user=f"ann{NBSP}lee")
    site.wait("fine", phase_is("Running"))
    for name, (_, said) in trainers.items():
        job = site.wait(name, reason_is("InvalidConfig"))
        assert said in job["status"]["message"]
        assert site.pods(name) == []


@pytest.fixture
def no_policy(api: Kube) -> Iterator[None]:
    """An administrator has deleted the binding of the policy over whole specs."""
    api.delete("validatingadmissionpolicybindings", NAME)
    yield
    api.ensure(spec_policy()[1])


@pytest.mark.usefixtures("no_policy")
def test_without_its_policy_a_spec_is_refused_before_it_gets_a_gpu(site: Site) -> None:
    specs: dict[str, tuple[dict[str, Any], str]] = {
        "elastic": ({"minNodes": 2}, "spec.minNodes: minNodes must be at most nodes; lower it"),
        "gpus": (
            {"resources": {"nvidia.com/gpu": 8}},
            "spec.resources: resources: GPUs are requested with gpusPerNode",
        ),
        "both": (
            {"trainer": {}, "template": {"image": "any:1"}},
            "spec: exactly one of trainer and template is required",
        ),
        "dotted.name": ({}, "metadata.name: a TrainingJob's name must have at most 50 characters"),
    }
    for name, (fields, _) in specs.items():
        once_allowed(partial(site.submit, name, nodes=1, gpusPerNode=1, **fields))
    for name, (_, said) in specs.items():
        job = site.wait(name, reason_is("InvalidConfig"))
        assert said in job["status"]["message"]
        assert site.pods(name) == []


REFUSED = "drumline-test-refused-status"


@pytest.fixture
def refused_status(api: Kube, site: Site) -> Iterator[None]:
    """A policy refuses the statuses of jobs named `big`, as etcd does for objects that large."""
    here = f"object.metadata.namespace == '{site.namespace}'"
    expression = f"!(object.metadata.name.startsWith('big') && {here})"
    metadata = {"name": REFUSED}
    rules = [
        {
            "apiGroups": ["drumline.dev"],
            "apiVersions": ["*"],
            "operations": ["UPDATE"],
            "resources": ["trainingjobs/status"],
        }
    ]
    api.ensure(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": metadata,
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": rules},
                "validations": [{"expression": expression, "message": "no status"}],
            },
        }
    )
    api.ensure(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata,
            "spec": {"policyName": REFUSED, "validationActions": ["Deny"]},
        }
    )
    site.submit("big-probe", nodes=1, gpusPerNode=8, suspend=True)
    body = {"message": "mine"}
    once_refused(lambda: api.patch_status("trainingjobs", "big-probe", body, site.namespace))
    yield
    for plural in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
        api.delete(plural, REFUSED)


@pytest.mark.usefixtures("refused_status")
def test_a_job_whose_status_is_refused_keeps_no_place_from_others(site: Site) -> None:
    site.submit("big", nodes=4, gpusPerNode=8)
    events = site.kube.wait_all(
        "events",
        site.namespace,
        lambda events: any(event.get("reason") == "ApiRefused" for event in events),
    )
    (said,) = [event["message"] for event in events if event.get("reason") == "ApiRefused"]
    assert not missing(said, "its status could not be written", "no status")
    site.submit("fine", nodes=1, gpusPerNode=8)
    site.wait("fine", phase_is("Running"))
