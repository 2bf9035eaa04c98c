from __future__ import annotations

import json
from typing import Any

import pytest

from drumline_cli.doctor import objects
from drumline_cli.doctor.reading import expected_fields


def a_lease(*, renewed: str, stamped: str, field: str = "f:renewTime") -> bytes:
    entry = {"manager": "kubelet", "time": stamped, "fieldsV1": {"f:spec": {field: {}}}}
    lease = {
        "metadata": {"name": "gpu-0", "managedFields": [entry]},
        "spec": {"renewTime": renewed},
    }
    return json.dumps(lease).encode()


@pytest.mark.parametrize(
    ("renewed", "ahead"),
    [("2026-11-23T01:00:00.700000Z", 0.2), ("2026-11-23T00:59:20.500000Z", -40.0)],
)
def test_a_kubelets_clock_beside_the_servers_stamp(renewed: str, ahead: float) -> None:
    clock = objects.node_clock(a_lease(renewed=renewed, stamped="2026-11-23T01:00:00Z"))
    assert clock is not None
    assert clock.node == "gpu-0"
    assert clock.ahead_seconds == pytest.approx(ahead)


def test_a_stamp_of_another_field_says_nothing_of_the_clock() -> None:
    raw = a_lease(
        renewed="2026-11-23T01:00:00.0Z", stamped="2026-11-23T00:00:00Z", field="f:holderIdentity"
    )
    assert objects.node_clock(raw) is None


def a_pod(**changes: Any) -> bytes:
    container = {"name": "main", "resources": {"requests": {"nvidia.com/gpu": "2", "cpu": "1"}}}
    pod = {
        "metadata": {"namespace": "lab", "name": "notebook"},
        "spec": {
            "nodeName": "gpu-0",
            "schedulerName": "default-scheduler",
            "containers": [container],
        },
        **changes,
    }
    return json.dumps(pod).encode()


def test_pods_that_hold_devices_are_kept_and_whose_they_are() -> None:
    foreign = objects.device_pod(a_pod())
    assert foreign is not None
    assert (foreign.ours, foreign.daemon, foreign.requests) == (False, False, {"nvidia.com/gpu": 2})
    metadata = {
        "namespace": "lab",
        "name": "gpt-0",
        "labels": {"drumline.dev/job": "gpt"},
        "ownerReferences": [{"kind": "DaemonSet", "uid": "1"}],
    }
    ours = objects.device_pod(a_pod(metadata=metadata))
    assert ours is not None
    assert (ours.ours, ours.daemon) == (True, True)
    assert objects.device_pod(a_pod(spec={"containers": [{"name": "main"}]})) is None


def test_a_prometheus_without_a_selector_takes_nothing_and_an_empty_one_takes_all() -> None:
    raw = {
        "metadata": {"name": "main", "namespace": "monitoring"},
        "spec": {"podMonitorSelector": {}, "ruleSelector": {"matchLabels": {"release": "kps"}}},
    }
    prometheus = objects.prometheus(json.dumps(raw).encode())
    assert prometheus.selectors == {
        "ServiceMonitor": None,
        "PodMonitor": {},
        "PrometheusRule": {"release": "kps"},
    }


def test_jobs_that_are_over_need_nothing() -> None:
    job: dict[str, Any] = {
        "metadata": {"name": "gpt", "namespace": "lab"},
        "spec": {"nodes": 4, "checkpoint": {"claimName": "shared"}},
    }
    running = objects.job(json.dumps(job).encode())
    assert running is not None
    assert (running.nodes, running.claim) == (4, "shared")
    over = {**job, "status": {"phase": "Succeeded"}}
    assert objects.job(json.dumps(over).encode()) is None


def test_the_fields_of_our_kinds_are_those_of_the_models() -> None:
    fields = expected_fields()
    assert fields.keys() == {"TrainingJob", "TrainingQueue", "GpuPool"}
    assert {"spec.checkpoint.claimName", "status.phase"} <= fields["TrainingJob"]
    assert "spec.topologyLevels.nodeLabel" in fields["GpuPool"]
