"""What is read of a probe's pods, and that they are as restricted as they can be."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from drumline_cli.doctor.probe_pods import (
    LABEL,
    ProbeSite,
    connecting_pod,
    limit_pod,
    listening_pod,
    network_probe,
    node_probe,
    policy,
    probe_pod,
)

SITE = ProbeSite(run="0a1b", image="trainer:1", seconds=90, user=65532, pull_secrets=("registry",))


def a_pod(phase: str = "Running", **state: Any) -> bytes:
    pod = {
        "metadata": {"name": "p", "labels": {LABEL: "0a1b", f"{LABEL}-pod": "node-0"}},
        "spec": {"containers": []},
        "status": {
            "phase": phase,
            "podIP": "10.0.0.7",
            "containerStatuses": [{"name": "probe", "state": state}] if state else [],
        },
    }
    return json.dumps(pod).encode()


def ended(message: str = "", *, code: int = 0) -> bytes:
    return a_pod("Succeeded", terminated={"exitCode": code, "reason": "Error", "message": message})


def test_the_limit_that_a_pod_wrote() -> None:
    for written, limit in (('{"lockedMemoryBytes": null}', None), ('{"lockedMemoryBytes": 8}', 8)):
        result = node_probe(probe_pod(ended(written)), pool="h100", node="gpu-0")
        assert (result.problem, result.locked_memory_bytes) == ("", limit)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (a_pod("Pending"), "it did not finish in time"),
        (
            a_pod(
                "Pending", waiting={"reason": "ImagePullBackOff", "message": "no such \x1b[2Jtag"}
            ),
            "ImagePullBackOff: no such [2Jtag",
        ),
        (ended("Traceback", code=1), "it exited with 1 Error"),
        (ended("no JSON"), "it wrote no result: the image must contain python3"),
    ],
)
def test_why_a_pod_did_not_do_its_work(raw: bytes, problem: str) -> None:
    assert node_probe(probe_pod(raw), pool="h100", node="gpu-0").problem == problem


def test_whom_a_pod_reached() -> None:
    said = probe_pod(ended('{"reachedOpen": true, "reachedClosed": false}'))
    seen = network_probe(said, path="gpu-0 to gpu-1")
    assert seen is not None
    assert (seen.reached_open, seen.reached_closed) == (True, False)
    assert network_probe(probe_pod(ended("")), path="gpu-0 to gpu-1") is None


def test_only_a_running_pod_has_an_address() -> None:
    assert probe_pod(a_pod("Running")).address == "10.0.0.7"
    assert probe_pod(a_pod("Pending")).address == ""


def test_every_pod_is_restricted_asks_for_no_gpu_and_ends_by_itself() -> None:
    pods = [
        limit_pod(SITE, number=0, node="gpu-0"),
        listening_pod(SITE, name="closed", node="gpu-0"),
        connecting_pod(SITE, node="gpu-1", open_at="10.0.0.7", closed_at="10.0.0.8"),
    ]
    for pod in pods:
        spec = pod["spec"]
        (container,) = spec["containers"]
        assert spec["activeDeadlineSeconds"] == 90
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    assigned = limit_pod(replace(SITE, user=None), number=0, node="gpu-0")
    assert "runAsUser" not in assigned["spec"]["securityContext"]
    closed = policy(SITE)["spec"]["podSelector"]["matchLabels"].items()
    assert [closed <= pod["metadata"]["labels"].items() for pod in pods] == [False, True, False]
