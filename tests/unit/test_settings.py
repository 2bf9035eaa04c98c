"""The environment the operator is given."""

from __future__ import annotations

import dataclasses
import re
import socket
from pathlib import Path

import pytest

from drumline.kube.workload_kinds import OTHER_KINDS
from drumline.settings import WORKLOAD_KINDS, Settings, SettingsError, from_environment
from drumline_api.policy import SchedulingPolicy

EVERYTHING = {
    "DRUMLINE_NAMESPACE": "elsewhere",
    "DRUMLINE_WATCH_NAMESPACES": "nlp,vision,nlp",
    "DRUMLINE_INSTALLATION": "research",
    "DRUMLINE_GUARDED_POOLS": "gpus,shared",
    "DRUMLINE_EVICT_FOREIGN_PODS": "true",
    "DRUMLINE_WORKLOAD_KINDS": "RayCluster,MPIJob,RayCluster",
    "DRUMLINE_DYNAMIC_RESOURCES": "true",
    "DRUMLINE_POD_NAME": "operator-0",
    "DRUMLINE_TRAINER_IMAGE": "trainer:2",
    "DRUMLINE_OPERATOR_IMAGE": "operator:2",
    "DRUMLINE_AGENT_IMAGE": "agent:2",
    "DRUMLINE_SIGNING_KEY_FILE": "/keys/signing",
    "DRUMLINE_SIGNING_KEY_OBJECT": "drumline-key",
    "DRUMLINE_PRIORITY_CLASS": "pods",
    "DRUMLINE_TRAINING_USER": "assigned",
    "DRUMLINE_LEASE_SECONDS": "20",
    "DRUMLINE_PROGRESS_SECONDS": "2.5",
    "DRUMLINE_PREEMPTION_SECONDS": "120",
    "DRUMLINE_SCHEDULING": '{"waiting": "Strict", "historyHalfLifeSeconds": 3600}',
    "DRUMLINE_ADMIT_WORKLOADS": "true",
    "DRUMLINE_CAPTURE_FILE": "/captures/newest.json",
    "DRUMLINE_LOG_LEVEL": "DEBUG",
    "DRUMLINE_LOG_FORMAT": "console",
    "DRUMLINE_HTTP_HOST": "127.0.0.1",
    "DRUMLINE_HTTP_PORT": "0",
    "DRUMLINE_JOB_METRICS": "700",
    "DRUMLINE_AUTOSCALING_MODES": "ProvisioningRequest,CapacityBuffer",
    "DRUMLINE_READ_KARPENTER": "true",
    "DRUMLINE_ARCHIVE": "s3://archive/jobs",
    "DRUMLINE_ARCHIVE_DAYS": "30",
    "DRUMLINE_ARCHIVE_LOGS": "true",
    "DRUMLINE_API_SERVER": "https://api.example:6443/",
    "DRUMLINE_API_SERVER_CA": "/ca.crt",
    "DRUMLINE_NOTIFICATIONS": "/etc/notifications/config.json",
    "DRUMLINE_NOTIFICATIONS_SECRETS": "/secrets",
    "DRUMLINE_NOTIFICATIONS_RECORD": "sent",
    "DRUMLINE_TRAINER_POD": '{"env": [{"name": "A", "value": "1"}]}',
    "DRUMLINE_METRICS_FROM": '[{"podSelector": {}}]',
}


def test_an_empty_environment_gives_the_defaults() -> None:
    assert from_environment({}) == Settings(identity=socket.gethostname())


def test_every_variable_arrives() -> None:
    assert from_environment(EVERYTHING) == Settings(
        namespace="elsewhere",
        watch_namespaces=("nlp", "vision"),
        installation="research",
        guarded_pools=("gpus", "shared"),
        evict_foreign_pods=True,
        workload_kinds=("RayCluster", "MPIJob"),
        dynamic_resources=True,
        identity="operator-0",
        trainer_image="trainer:2",
        operator_image="operator:2",
        agent_image="agent:2",
        signing_key_file=Path("/keys/signing"),
        signing_key_object="drumline-key",
        priority_class="pods",
        training_user=None,
        lease_seconds=20,
        progress_seconds=2.5,
        preemption_seconds=120.0,
        scheduling=SchedulingPolicy(waiting="Strict", history_half_life_seconds=3600),
        admit_workloads=True,
        capture_file=Path("/captures/newest.json"),
        log_level="debug",
        log_format="console",
        http_host="127.0.0.1",
        http_port=0,
        job_metrics=700,
        archive="s3://archive/jobs",
        archive_days=30,
        autoscaling_modes=("ProvisioningRequest", "CapacityBuffer"),
        read_karpenter=True,
        archive_logs=True,
        api_server="https://api.example:6443",
        api_server_ca=Path("/ca.crt"),
        notifications=Path("/etc/notifications/config.json"),
        notifications_secrets=Path("/secrets"),
        notifications_record="sent",
        trainer_pod={"env": [{"name": "A", "value": "1"}]},
        metrics_from=[{"podSelector": {}}],
    )


def test_the_table_above_is_complete_and_documented() -> None:
    source = Path(str(from_environment.__code__.co_filename)).read_text()
    documented = set(re.findall(r'"""(DRUMLINE_[A-Z_]+)[:.]', source))
    assert documented == set(EVERYTHING)
    assert len(EVERYTHING) == len(dataclasses.fields(Settings))


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert from_environment(dict.fromkeys(EVERYTHING, "")) == from_environment({})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("LEASE_SECONDS", "12", "must be at least 13"),
        ("LEASE_SECONDS", "soon", "must be a number"),
        ("LEASE_SECONDS", "inf", "must be at least 13"),
        ("LEASE_SECONDS", "nan", "must be at least 13"),
        ("PROGRESS_SECONDS", "0.5", "must be at least 1"),
        ("HTTP_PORT", "-1", "must be at least 0"),
        ("WATCH_NAMESPACES", "nlp,Not One", "'Not One' is not a valid namespace name"),
        ("INSTALLATION", "a/b", "must be a valid namespace name"),
        ("TRAINING_USER", "0", "must be a user ID of at least 1, or 'assigned'"),
        ("TRAINING_USER", "root", "must be a user ID of at least 1, or 'assigned'"),
        ("LOG_LEVEL", "loud", "must be one of debug, info, warning, error"),
        ("LOG_FORMAT", "xml", "must be one of json, console"),
        ("SCHEDULING", "[]", "must be a JSON object"),
        ("SCHEDULING", '{"waiting": "Never"}', "waiting: Input should be 'BestEffort'"),
        ("SCHEDULING", '{"reservations": 0}', "reservations: Input should be greater than"),
        ("SCHEDULING", '{"wait": "Strict"}', "wait: Extra inputs are not permitted"),
        ("TRAINER_POD", "{", "not JSON"),
        ("TRAINER_POD", "[]", "must be a JSON object"),
        ("TRAINER_POD", '{"hostNetwork": true}', "unknown key 'hostNetwork'; known: volumes"),
        ("METRICS_FROM", "[", "not JSON"),
        ("METRICS_FROM", "{}", "must be a JSON list"),
        ("METRICS_FROM", '["10.0.0.0/8"]', "every peer must be an object"),
        ("METRICS_FROM", "[{}]", "every peer must be an object"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(name: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        from_environment({f"DRUMLINE_{name}": value})
    assert f"DRUMLINE_{name}" in str(caught.value)
    assert said in str(caught.value)


def test_every_kind_of_workload_that_there_is_may_be_chosen() -> None:
    assert set(WORKLOAD_KINDS) == OTHER_KINDS.keys()
    with pytest.raises(SettingsError, match=r"DRUMLINE_WORKLOAD_KINDS.*'Job'.*RayCluster"):
        from_environment({"DRUMLINE_WORKLOAD_KINDS": "Job"})


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("10.96.0.1", "443", "https://10.96.0.1:443"),
        ("fd00::1", "6443", "https://[fd00::1]:6443"),
        ("", "", "https://kubernetes.default.svc"),
    ],
)
def test_the_page_finds_the_api_server_without_dns(host: str, port: str, address: str) -> None:
    given = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    assert from_environment(given).api_server == address
