"""The chart as Helm renders it: what is in it, and what it refuses."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from drumline.api import crds
from drumline.api.gpupool import GpuPoolSpec
from drumline.api.load import parse
from drumline.api.policy import SchedulingPolicy
from drumline.api.trainingjob import TrainingJobSpec
from drumline.api.trainingqueue import TrainingQueueSpec
from drumline.cli.doctor.checks.tenants import queues
from drumline.cli.doctor.facts import PoolFact, QueueFact
from drumline.cli.doctor.results import Passed
from drumline.lifecycle.manifests.shared_objects import SHARED_NAME
from drumline.monitoring import generate
from drumline.notifications.channels import parsed
from drumline.scheduling.capture import MAX_BYTES
from drumline.settings import Settings, from_environment
from tests.cluster.binaries import ensure_binaries

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm/drumline"
NAMESPACE = "drumline-system"
RULE = "PrometheusRule"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

Json = dict[str, Any]
Render = Callable[..., list[Json]]


@pytest.fixture(scope="session")
def helm() -> Path:
    return ensure_binaries(["helm"], say=print)["helm"]


@pytest.fixture(scope="session")
def render(helm: Path) -> Render:
    """Every object of the chart with these `--set-json` values; raises what Helm says.

    Without the hooks of `helm test`, unless `tests` is true; `serves`: API groups of the cluster.
    """

    def objects(
        *,
        tests: bool = False,
        namespace: str = NAMESPACE,
        serves: Sequence[str] = (),
        **values: Any,
    ) -> list[Json]:
        chosen = [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]
        command = [helm, "template", "drumline", CHART, f"--namespace={namespace}", *chosen]
        command += [] if tests else ["--skip-tests"]
        command += [f"--api-versions={group}" for group in serves]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise ValueError(done.stderr)
        return [item for item in yaml.safe_load_all(done.stdout) if item]

    return objects


@pytest.fixture(scope="session")
def defaults(render: Render) -> list[Json]:
    return render()


def only(objects: list[Json], kind: str) -> Json:
    (matching,) = [each_object for each_object in objects if each_object["kind"] == kind]
    return matching


def pod_of(objects: list[Json]) -> Json:
    return only(objects, "Deployment")["spec"]["template"]


def environment(objects: list[Json]) -> dict[str, str]:
    """The operator's variables, with the downward API's filled in and $$ undone as the kubelet."""
    fields = {"metadata.namespace": NAMESPACE, "metadata.name": "pod-0"}
    (container,) = pod_of(objects)["spec"]["containers"]
    return {
        entry["name"]: entry["value"].replace("$$", "$")
        if "value" in entry
        else fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        for entry in container["env"]
    }


def test_every_kind_and_name(defaults: list[Json]) -> None:
    names = sorted((default["kind"], default["metadata"]["name"]) for default in defaults)
    assert names == [
        ("ClusterRole", "drumline-edit"),
        ("ClusterRole", "drumline-operator"),
        ("ClusterRole", "drumline-view"),
        ("ClusterRoleBinding", "drumline-operator"),
        ("ConfigMap", "drumline-prometheus"),
        ("CustomResourceDefinition", "gpupools.drumline.dev"),
        ("CustomResourceDefinition", "trainingjobs.drumline.dev"),
        ("CustomResourceDefinition", "trainingqueues.drumline.dev"),
        ("Deployment", "drumline-operator"),
        ("FlowSchema", "drumline-operator"),
        ("FlowSchema", "drumline-operator-lease"),
        ("NetworkPolicy", "drumline-operator"),
        ("PodDisruptionBudget", "drumline-operator"),
        ("PriorityClass", "drumline-training-pods"),
        ("PriorityLevelConfiguration", "drumline-operator"),
        ("PriorityLevelConfiguration", "drumline-operator-lease"),
        ("Role", "drumline-operator"),
        ("RoleBinding", "drumline-operator"),
        ("Service", "drumline-operator"),
        ("ServiceAccount", "drumline-operator"),
        ("ValidatingAdmissionPolicy", "drumline-operator-pods"),
        ("ValidatingAdmissionPolicy", "trainingjobs.drumline.dev"),
        ("ValidatingAdmissionPolicyBinding", "drumline-operator-pods"),
        ("ValidatingAdmissionPolicyBinding", "trainingjobs.drumline.dev"),
    ]


def test_namespaced_objects_are_in_the_releases_namespace(defaults: list[Json]) -> None:
    assert {default["metadata"].get("namespace", NAMESPACE) for default in defaults} == {NAMESPACE}


def test_the_deployment_tells_the_operator_what_it_would_assume(defaults: list[Json]) -> None:
    assert from_environment(environment(defaults)) == Settings(
        identity="pod-0",
        trainer_image="drumline/trainer:0.1.0",
        operator_image="drumline/operator:0.1.0",
        signing_key_object="drumline-signing-key",
        trainer_pod={
            "volumes": [],
            "volumeMounts": [],
            "env": [],
            "annotations": {},
            "tolerations": [],
            "imagePullSecrets": [],
        },
    )


def test_values_reach_the_operator(render: Render) -> None:
    additions = {
        "volumes": [{"name": "site", "persistentVolumeClaim": {"claimName": "site"}}],
        "volumeMounts": [{"name": "site", "mountPath": "/opt/site-packages"}],
        "env": [{"name": "PYTHONPATH", "value": "$(BASE):/opt/site-packages"}],
        "annotations": {"k8s.v1.cni.cncf.io/networks": "rdma"},
        "tolerations": [{"key": "team", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}],
    }
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "prom"}}}
    digest = "sha256:" + "a" * 64
    objects = render(
        trainerPod=additions,
        trainerImage={"repository": "registry.example.com/trainer", "digest": digest},
        image={"repository": "registry.example.com/operator", "tag": "7"},
        agentImage={"repository": "registry.example.com/agent"},
        leaderElection={"leaseSeconds": 20},
        progressIntervalSeconds=5,
        preemptionSeconds=90,
        scheduling={"waiting": "Strict", "reservations": 2},
        logLevel="debug",
        logFormat="console",
        trainingPriorityClass={"name": "other-class"},
        networkPolicy={"trainingMetricsFrom": [monitoring], "metricsFrom": [monitoring]},
        metrics={"jobs": 700},
    )
    assert from_environment(environment(objects)) == Settings(
        identity="pod-0",
        trainer_image=f"registry.example.com/trainer@{digest}",
        operator_image="registry.example.com/operator:7",
        agent_image="registry.example.com/agent:0.1.0",
        signing_key_object="drumline-signing-key",
        priority_class="other-class",
        lease_seconds=20,
        progress_seconds=5,
        preemption_seconds=90,
        scheduling=SchedulingPolicy(waiting="Strict", reservations=2),
        log_level="debug",
        log_format="console",
        trainer_pod=additions,
        metrics_from=[monitoring],
        job_metrics=700,
    )
    (container,) = pod_of(objects)["spec"]["containers"]
    assert container["image"] == "registry.example.com/operator:7"
    assert only(objects, "PriorityClass")["metadata"]["name"] == "other-class"


def test_the_operators_pod_is_restricted(defaults: list[Json]) -> None:
    pod = pod_of(defaults)["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] >= 10_000
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["requests"] == {"cpu": "100m", "memory": "256Mi"}
    assert {next(iter(set(volume) - {"name"})) for volume in pod["volumes"]} <= {
        "secret",
        "emptyDir",
    }
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC", "initContainers"}


def test_the_longest_capture_has_room_in_the_pod(defaults: list[Json]) -> None:
    volumes = {item["name"]: item for item in pod_of(defaults)["spec"]["volumes"]}
    size, unit = volumes["tmp"]["emptyDir"]["sizeLimit"][:-2], 1 << 20
    assert int(size) * unit > MAX_BYTES


def test_probes_ask_what_the_operator_serves(defaults: list[Json]) -> None:
    (container,) = pod_of(defaults)["spec"]["containers"]
    paths = {name: container[name]["httpGet"] for name in container if name.endswith("Probe")}
    assert paths == {
        "startupProbe": {"path": "/healthz", "port": "http"},
        "livenessProbe": {"path": "/healthz", "port": "http"},
        "readinessProbe": {"path": "/readyz", "port": "http"},
    }
    assert container["ports"] == [{"name": "http", "containerPort": 8080}]
    assert environment(defaults)["DRUMLINE_HTTP_PORT"] == "8080"


def rules(objects: list[Json]) -> Iterator[Json]:
    for each_object in objects:
        if each_object["kind"] in {"ClusterRole", "Role"}:
            yield from each_object["rules"]


def test_no_right_is_a_wildcard(defaults: list[Json]) -> None:
    for rule in rules(defaults):
        for values in rule.values():
            assert not any("*" in value for value in values), rule


def test_the_operator_may_do_this_and_nothing_else(defaults: list[Json]) -> None:
    granted = {
        (resource, verb)
        for default in defaults
        if default["kind"] in {"ClusterRole", "Role"}
        and default["metadata"]["name"] == "drumline-operator"
        for rule in default["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    read = ("get", "list", "watch")
    assert granted == {
        *(("trainingjobs", verb) for verb in (*read, "delete")),
        *((kind, verb) for kind in ("trainingqueues", "gpupools") for verb in read),
        *(
            (f"{kind}/status", verb)
            for kind in ("trainingjobs", "trainingqueues", "gpupools")
            for verb in ("get", "patch", "update")
        ),
        *(("pods", verb) for verb in (*read, "create", "patch", "delete", "deletecollection")),
        ("pods/status", "patch"),
        *(("nodes", verb) for verb in read),
        *(("namespaces", verb) for verb in read),
        *(("priorityclasses", verb) for verb in read),
        ("secrets", "create"),
        ("poddisruptionbudgets", "create"),
        ("poddisruptionbudgets", "patch"),
        ("networkpolicies", "create"),
        *(("poddisruptionbudgets", verb) for verb in ("list", "delete")),
        *(("networkpolicies", verb) for verb in ("list", "patch", "delete")),
        ("events", "create"),
        ("events", "patch"),
        ("events", "list"),
        ("persistentvolumeclaims", "get"),
        ("persistentvolumeclaims", "patch"),
        ("storageclasses", "get"),
        ("leases", "create"),
        ("leases", "get"),
        ("leases", "update"),
    }


def test_on_openshift_the_operator_may_use_the_constraint_that_its_pods_need(
    render: Render, defaults: list[Json]
) -> None:
    """It is asked of the creator of a pod as of its account, so one right covers training pods."""
    group = "security.openshift.io"

    def constraints(objects: list[Json]) -> list[Json]:
        roles = [entry for entry in objects if entry["kind"] == "ClusterRole"]
        rules = [rule for role in roles for rule in role.get("rules", [])]
        return [rule for rule in rules if group in rule["apiGroups"]]

    assert constraints(defaults) == []
    (rule,) = constraints(render(serves=[f"{group}/v1"]))
    assert (rule["verbs"], rule["resourceNames"]) == (["use"], ["nonroot-v2"])
    own = render(serves=[f"{group}/v1"], rbac={"openshiftConstraint": ""})
    assert constraints(own) == []


def test_only_pods_of_the_operators_namespace_get_a_status(defaults: list[Json]) -> None:
    kinds = [
        each_object["kind"]
        for each_object in defaults
        for rule in rules([each_object])
        if "pods/status" in rule["resources"]
    ]
    assert kinds == ["Role"]


def test_only_the_operators_own_lease_can_be_read_or_taken(defaults: list[Json]) -> None:
    leases = [rule for rule in rules(defaults) if rule["resources"] == ["leases"]]
    assert [(rule["verbs"], rule.get("resourceNames")) for rule in leases] == [
        (["create"], None),
        (["get", "update"], ["drumline-operator"]),
    ]


def test_only_the_shared_objects_of_namespaces_can_be_listed_changed_or_deleted(
    defaults: list[Json],
) -> None:
    for kind, rest in (
        ("poddisruptionbudgets", ["create", "patch"]),
        ("networkpolicies", ["create"]),
    ):
        named = [rule for rule in rules(defaults) if rule["resources"] == [kind]]
        assert [rule.get("resourceNames") for rule in named] == [None, [SHARED_NAME]]
        assert named[0]["verbs"] == rest


def test_users_roles_are_aggregated(defaults: list[Json]) -> None:
    aggregated = {
        default["metadata"]["name"]: {
            label.removeprefix("rbac.authorization.k8s.io/aggregate-to-")
            for label in default["metadata"]["labels"]
            if label.startswith("rbac.authorization.k8s.io/")
        }
        for default in defaults
        if default["kind"] == "ClusterRole"
    }
    assert aggregated == {
        "drumline-operator": set(),
        "drumline-view": {"view", "edit", "admin"},
        "drumline-edit": {"edit", "admin"},
    }


def test_every_render_is_the_same_and_the_operator_makes_the_signing_key(
    render: Render, defaults: list[Json]
) -> None:
    assert render() == defaults
    assert "Secret" not in {each_object["kind"] for each_object in defaults}
    assert environment(defaults)["DRUMLINE_SIGNING_KEY_OBJECT"] == "drumline-signing-key"
    secret = {"secretName": "drumline-signing-key", "defaultMode": 0o440, "optional": True}
    assert {"name": "signing-key", "secret": secret} in pod_of(defaults)["spec"]["volumes"]


def test_a_secret_of_ones_own_is_mounted_and_never_made(render: Render) -> None:
    objects = render(signingKey={"existingSecret": "mine"})
    assert "DRUMLINE_SIGNING_KEY_OBJECT" not in environment(objects)
    secret = {"secretName": "mine", "defaultMode": 0o440, "optional": False}
    assert {"name": "signing-key", "secret": secret} in pod_of(objects)["spec"]["volumes"]


def test_the_crds_and_their_policy_are_those_of_the_models_and_are_kept(
    render: Render, defaults: list[Json]
) -> None:
    def of_jobs(objects: list[Json]) -> dict[str, Json]:
        """CRDs, and what decides over their objects; the policy about users is another one."""
        return {
            f"{each_object['kind']} {each_object['metadata']['name']}": each_object
            for each_object in objects
            if each_object["metadata"]["name"].endswith("s.drumline.dev")
        }

    generated = [
        manifest
        for name, text in crds.generated().items()
        if not name.startswith(crds.ALONE)
        for manifest in yaml.safe_load_all(text)
    ]
    installed = of_jobs(defaults)
    assert installed.keys() == of_jobs(generated).keys()
    assert len(installed) == 5
    for name, manifest in of_jobs(generated).items():
        assert installed[name]["spec"] == manifest["spec"]
        assert installed[name]["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    unkept = of_jobs(render(crds={"keep": False}))
    assert all("annotations" not in item["metadata"] for item in unkept.values())
    assert of_jobs(render(crds={"install": False})) == {}


def test_helm_test_runs_the_doctor_beside_the_operator_and_reads_alone(
    render: Render, defaults: list[Json]
) -> None:
    objects = [entry for entry in render(tests=True) if entry not in defaults]
    assert sorted(entry["kind"] for entry in objects) == [
        "ClusterRole",
        "ClusterRoleBinding",
        "Pod",
        "ServiceAccount",
    ]
    assert {entry["metadata"]["annotations"]["helm.sh/hook"] for entry in objects} == {"test"}
    pod = only(objects, "Pod")
    selector = only(defaults, "Deployment")["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    assert container["command"][2:] == ["drumline", "doctor", "--system-namespace", NAMESPACE]
    operator = pod_of(defaults)["spec"]
    assert container["image"] == operator["containers"][0]["image"]
    assert container["securityContext"] == operator["containers"][0]["securityContext"]
    assert pod["spec"]["securityContext"] == operator["securityContext"]
    (role,) = [entry for entry in objects if entry["kind"] == "ClusterRole"]
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list"}
    assert "secrets" not in {kind for rule in role["rules"] for kind in rule["resources"]}
    assert render(tests=True, doctor={"enabled": False}) == defaults


def test_the_archiver_reads_alone_and_writes_where_it_is_told(
    render: Render, defaults: list[Json]
) -> None:
    objects = [
        entry
        for entry in render(archive={"enabled": True, "url": "s3://bucket/jobs", "days": 30})
        if entry not in defaults
    ]
    assert sorted(entry["kind"] for entry in objects) == [
        "ClusterRole",
        "ClusterRoleBinding",
        "Deployment",
        "NetworkPolicy",
        "ServiceAccount",
    ]
    role = only(objects, "ClusterRole")
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"list", "watch"}
    template = pod_of(objects)
    selector = only(defaults, "Deployment")["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= template["metadata"]["labels"].items()
    own = only(objects, "Deployment")["spec"]["selector"]["matchLabels"]
    assert own.items() <= template["metadata"]["labels"].items()
    settings = from_environment(environment(objects))
    assert (settings.archive, settings.archive_days) == ("s3://bucket/jobs", 30)
    (container,) = template["spec"]["containers"]
    operator = pod_of(defaults)["spec"]
    assert container["command"][2:] == ["drumline", "archiver"]
    assert container["securityContext"] == operator["containers"][0]["securityContext"]
    assert template["spec"]["securityContext"] == operator["securityContext"]


def test_the_archiver_reads_logs_where_they_are_wanted(render: Render) -> None:
    def readable(**archive: Any) -> set[str]:
        objects = render(archive={"enabled": True, "url": "s3://bucket", **archive})
        (role,) = [
            each
            for each in objects
            if each["kind"] == "ClusterRole" and each["metadata"]["name"] == "drumline-archiver"
        ]
        return {kind for rule in role["rules"] for kind in rule["resources"]}

    assert readable() == {"trainingjobs", "events"}
    assert readable(logs=True) == {"trainingjobs", "events", "pods", "pods/log"}


def test_the_archive_may_be_a_claim(render: Render) -> None:
    objects = render(archive={"enabled": True, "existingClaim": "jobs"})
    (archiver,) = [
        each
        for each in objects
        if each["kind"] == "Deployment" and each["metadata"]["name"] == "drumline-archiver"
    ]
    pod = archiver["spec"]["template"]["spec"]
    (volume,) = pod["volumes"]
    assert volume["persistentVolumeClaim"] == {"claimName": "jobs"}
    (container,) = pod["containers"]
    assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/archive"}]
    assert container["env"][0] == {"name": "DRUMLINE_ARCHIVE", "value": "file:///archive"}


NOTIFICATIONS: Json = {
    "enabled": True,
    "config": {
        "cluster": "east",
        "channels": {
            "slack-nlp": {
                "jobsMayChoose": True,
                "slack": {"urlFrom": {"secret": "slack", "key": "url"}},
            },
            "audit": {
                "webhook": {
                    "url": "https://audit.example.com/events",
                    "tokenFrom": {"secret": "audit", "key": "token"},
                    "caFrom": {"secret": "audit", "key": "ca.pem"},
                }
            },
        },
        "routes": [{"channels": ["audit"]}, {"channels": ["slack-nlp"], "kinds": ["Failed"]}],
    },
}


def notifier_of(objects: list[Json], kind: str) -> Json:
    (matching,) = [
        each
        for each in objects
        if each["kind"] == kind and each["metadata"]["name"] == "drumline-notifier"
    ]
    return matching


def test_the_notifier_reads_jobs_and_writes_its_record_alone(
    render: Render, defaults: list[Json]
) -> None:
    objects = [entry for entry in render(notifications=NOTIFICATIONS) if entry not in defaults]
    assert sorted(entry["kind"] for entry in objects) == [
        *["ClusterRole"] * 2,
        *["ClusterRoleBinding"] * 2,
        "ConfigMap",
        "Deployment",
        "NetworkPolicy",
        "Role",
        "RoleBinding",
        "ServiceAccount",
    ]
    roles = [entry for entry in objects if entry["kind"] == "ClusterRole"]
    reads = [rule for role in roles for rule in role["rules"]]
    assert [rule["resources"] for rule in reads] == [["trainingjobs"], ["trainingqueues"]]
    assert [rule["verbs"] for rule in reads] == [["list", "watch"]] * 2
    creates, own = only(objects, "Role")["rules"]
    assert (creates["resources"], creates["verbs"]) == (["configmaps"], ["create"])
    assert own["resourceNames"] == [from_environment(environment(objects)).notifications_record]
    assert own["verbs"] == ["get", "update"]
    assert only(objects, "NetworkPolicy")["spec"]["policyTypes"] == ["Ingress"]
    deployment, template = only(objects, "Deployment")["spec"], pod_of(objects)
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    selector = only(defaults, "Deployment")["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= template["metadata"]["labels"].items()
    operator, (container,) = pod_of(defaults)["spec"], template["spec"]["containers"]
    assert container["command"][2:] == ["drumline", "notifier"]
    assert container["securityContext"] == operator["containers"][0]["securityContext"]
    assert template["spec"]["securityContext"] == operator["securityContext"]


def test_the_notifier_has_its_configuration_and_secrets_as_files(render: Render) -> None:
    objects = render(notifications=NOTIFICATIONS)
    template = notifier_of(objects, "Deployment")["spec"]["template"]
    (container,) = template["spec"]["containers"]
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    (config,) = [
        entry["data"]["config.json"]
        for entry in objects
        if entry["metadata"]["name"] == "drumline-notifier-config"
    ]
    read = parsed(config.encode())
    assert (read.cluster, sorted(read.channels)) == ("east", ["audit", "slack-nlp"])
    assert variables["DRUMLINE_NOTIFICATIONS"] == "/etc/drumline/config.json"
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    folder = Settings().notifications_secrets
    mounts = {
        mount["mountPath"]: volumes[mount["name"]]["secret"]["secretName"]
        for mount in container["volumeMounts"]
        if mount["name"] != "config"
    }
    assert mounts == {str(folder / name): name for name in ("audit", "slack")}
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    other = NOTIFICATIONS | {"config": NOTIFICATIONS["config"] | {"cluster": "west"}}
    again = notifier_of(render(notifications=other), "Deployment")["spec"]["template"]
    assert again["metadata"]["annotations"] != template["metadata"]["annotations"]


def test_the_page_has_no_rights_and_is_reached_by_nobody_who_is_not_named(
    render: Render, defaults: list[Json]
) -> None:
    proxy = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "login"}}}
    chosen = {"enabled": True, "from": [proxy]}
    objects = [entry for entry in render(ui=chosen) if entry not in defaults]
    assert sorted(entry["kind"] for entry in objects) == [
        *("Deployment", "NetworkPolicy", "Service", "ServiceAccount"),
    ]
    account, pod = only(objects, "ServiceAccount"), pod_of(objects)["spec"]
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert account["automountServiceAccountToken"] is False
    assert pod["automountServiceAccountToken"] is False
    (volume,), (container,) = pod["volumes"], pod["containers"]
    assert volume["configMap"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    (mount,) = container["volumeMounts"]
    assert Settings().api_server_ca == Path(mount["mountPath"]) / "ca.crt"
    assert container["command"][2:] == ["drumline", "page"]
    operator = pod_of(defaults)["spec"]
    assert container["securityContext"] == operator["containers"][0]["securityContext"]
    assert pod["securityContext"] == operator["securityContext"]
    same = from_environment(environment(defaults)).scheduling
    assert from_environment(environment(objects)).scheduling == same
    policy = only(objects, "NetworkPolicy")["spec"]
    assert policy["ingress"] == [
        {"from": [proxy], "ports": [{"protocol": "TCP", "port": "http"}]},
    ]
    assert policy["podSelector"]["matchLabels"] == only(objects, "Service")["spec"]["selector"]
    labels = pod_of(objects)["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    selector = only(defaults, "Deployment")["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= labels.items()
    closed = [entry for entry in render(ui={"enabled": True}) if entry not in defaults]
    policy = only(closed, "NetworkPolicy")["spec"]
    assert ("ingress" in policy, policy["policyTypes"]) == (False, ["Ingress", "Egress"])


def test_training_pods_class_never_preempts(defaults: list[Json]) -> None:
    result = only(defaults, "PriorityClass")
    assert (result["value"], result["preemptionPolicy"]) == (1_000_000_000, "Never")


def test_two_replicas_are_spread_and_one_at_a_time_may_be_evicted(
    render: Render, defaults: list[Json]
) -> None:
    deployment = only(defaults, "Deployment")["spec"]
    assert deployment["replicas"] == 2
    budget = only(defaults, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"] == deployment["selector"]
    # kube-scheduler ignores nodes without zones in all constraints of a spread, were zones in it
    assert "topologySpreadConstraints" not in pod_of(defaults)["spec"]
    spread = preferred_apart(defaults)
    assert [(each["weight"], each["podAffinityTerm"]["topologyKey"]) for each in spread] == [
        (100, "kubernetes.io/hostname"),
        (50, "topology.kubernetes.io/zone"),
    ]
    for term in (each["podAffinityTerm"] for each in spread):
        assert term["labelSelector"] == deployment["selector"]
        assert term["matchLabelKeys"] == ["pod-template-hash"]
    assert "affinity" not in pod_of(render(replicas=1))["spec"]
    single = render(replicas=1)
    assert "PodDisruptionBudget" not in {each_object["kind"] for each_object in single}


def test_an_affinity_of_the_site_keeps_the_replicas_apart(render: Render) -> None:
    nodes = {PREFERRED: []}
    objects = render(affinity={"nodeAffinity": nodes})
    assert pod_of(objects)["spec"]["affinity"]["nodeAffinity"] == nodes
    assert len(preferred_apart(objects)) == 2
    own = render(affinity={"podAntiAffinity": {PREFERRED: []}})
    assert preferred_apart(own) == []


def preferred_apart(objects: list[Json]) -> list[Json]:
    return pod_of(objects)["spec"]["affinity"]["podAntiAffinity"][PREFERRED]


def test_the_operator_leaves_a_lost_node_in_seconds(render: Render, defaults: list[Json]) -> None:
    def seconds(objects: list[Json]) -> dict[str, int]:
        return {
            entry["key"]: entry["tolerationSeconds"]
            for entry in pod_of(objects)["spec"]["tolerations"]
        }

    lost = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    assert seconds(defaults) == dict.fromkeys(lost, 5)
    assert seconds(render(nodeLossSeconds=0)) == dict.fromkeys(lost, 0)


def test_the_lease_has_a_lane_to_itself_before_all_other_requests(defaults: list[Json]) -> None:
    schemas = {
        each_object["metadata"]["name"]: each_object["spec"]
        for each_object in defaults
        if each_object["kind"] == "FlowSchema"
    }
    lease, rest = schemas["drumline-operator-lease"], schemas["drumline-operator"]
    assert lease["matchingPrecedence"] < rest["matchingPrecedence"]
    assert lease["priorityLevelConfiguration"] != rest["priorityLevelConfiguration"]
    (rule,) = lease["rules"]
    assert rule["subjects"] == rest["rules"][0]["subjects"]
    (resource,) = rule["resourceRules"]
    assert (resource["apiGroups"], resource["resources"]) == (["coordination.k8s.io"], ["leases"])
    levels = {
        each_object["metadata"]["name"]: each_object["spec"]["limited"]
        for each_object in defaults
        if each_object["kind"] == "PriorityLevelConfiguration"
    }
    assert levels["drumline-operator-lease"]["lendablePercent"] == 0
    assert levels["drumline-operator-lease"]["nominalConcurrencyShares"] >= 1


def test_services_and_policies_select_the_operators_pod(defaults: list[Json]) -> None:
    labels = pod_of(defaults)["metadata"]["labels"].items()
    assert only(defaults, "Service")["spec"]["selector"].items() <= labels
    assert only(defaults, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items() <= labels


def test_the_scrape_configuration_finds_operator_and_training_pods(defaults: list[Json]) -> None:
    text = only(defaults, "ConfigMap")["data"]["drumline.yml"]
    reporters, operator, training = yaml.safe_load(text)["scrape_configs"]
    for ours in (reporters, operator):
        assert ours["kubernetes_sd_configs"][0]["namespaces"] == {"names": [NAMESPACE]}
        assert ours["honor_labels"]
    assert operator["relabel_configs"][0]["regex"] == "drumline;operator;http"
    assert reporters["relabel_configs"][0]["regex"] == "drumline;(notifier|archiver);http"
    assert training["relabel_configs"][0]["regex"] == ".+;Running;agent"


def test_monitors_of_the_prometheus_operator(render: Render) -> None:
    chosen = {"enabled": True, "interval": "30s", "labels": {"release": "prometheus"}}
    objects = render(metrics={"serviceMonitor": chosen, "podMonitor": chosen})
    service, pods = only(objects, "ServiceMonitor"), only(objects, "PodMonitor")
    for monitor in (service, pods):
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = service["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"], endpoint["interval"]) == ("http", "/metrics", "30s")
    assert endpoint["honorLabels"], "a job's namespace is not the operator's"
    assert pods["spec"]["podMetricsEndpoints"][0]["port"] == "agent"


def test_notifier_and_archiver_are_scraped_by_whoever_may_read_metrics(render: Render) -> None:
    peers = [{"namespaceSelector": {}}]
    channel = {"webhook": {"url": "https://example.com"}}
    objects = render(
        metrics={"podMonitor": {"enabled": True}},
        archive={"enabled": True, "url": "s3://bucket"},
        notifications={"enabled": True, "config": {"channels": {"any": channel}}},
        networkPolicy={"metricsFrom": peers},
    )
    monitors = {
        entry["metadata"]["name"]: entry["spec"]
        for entry in objects
        if entry["kind"] == "PodMonitor"
    }
    (chosen,) = monitors["drumline-notifier-archiver"]["selector"]["matchExpressions"]
    (endpoint,) = monitors["drumline-notifier-archiver"]["podMetricsEndpoints"]
    for component in chosen["values"]:
        name = f"drumline-{component}"
        (container,) = pod_of([e for e in objects if e["metadata"]["name"] == name])["spec"][
            "containers"
        ]
        assert endpoint["port"] in {port["name"] for port in container["ports"]}
        policy = next(
            entry["spec"]
            for entry in objects
            if (entry["kind"], entry["metadata"]["name"]) == ("NetworkPolicy", name)
        )
        ports = [{"protocol": "TCP", "port": "http"}]
        assert policy["ingress"] == [{"ports": ports, "from": peers}]
    assert chosen["values"] == ["notifier", "archiver"]


def test_alerts_name_the_namespace_of_the_release(render: Render) -> None:
    values = {"rules": {"enabled": True, "labels": {"release": "kps"}}}
    rule = only(render(namespace="training-system", metrics=values), RULE)
    assert rule["metadata"]["labels"]["release"] == "kps"
    text = generate.generated()[generate.ALERTS].replace("drumline-system", "training-system")
    assert rule["spec"] == yaml.safe_load(text)
    assert "-n training-system" in rule["spec"]["groups"][0]["rules"][0]["annotations"]["command"]


def test_boards_are_found_by_grafanas_sidecar(render: Render, defaults: list[Json]) -> None:
    values = {"dashboards": {"enabled": True, "annotations": {"grafana_folder": "Drumline"}}}
    boards = {
        path.rpartition("/")[2]: text
        for path, text in generate.generated().items()
        if path.startswith(generate.BOARD_FOLDER)
    }
    rendered = [entry for entry in render(metrics=values) if entry not in defaults]
    assert len(rendered) == len(boards) == 5
    for entry in rendered:
        assert entry["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert entry["metadata"]["annotations"] == {"grafana_folder": "Drumline"}
        ((name, text),) = entry["data"].items()
        assert json.loads(text) == json.loads(boards[name.removeprefix("drumline-")])


def test_training_pods_have_the_same_labels_whoever_scrapes_them(render: Render) -> None:
    objects = render(metrics={"podMonitor": {"enabled": True}})
    scrapes = yaml.safe_load(only(objects, "ConfigMap")["data"]["drumline.yml"])["scrape_configs"]
    (monitored,) = only(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    ours = {
        rule["target_label"]: rule["source_labels"]
        for rule in scrapes[2]["relabel_configs"]
        if rule.get("target_label") not in {None, "namespace", "pod"}  # a PodMonitor's own
    }
    theirs = {rule["targetLabel"]: rule["sourceLabels"] for rule in monitored["relabelings"]}
    assert theirs == ours != {}


def test_of_training_pods_the_same_is_taken_whoever_scrapes_them(render: Render) -> None:
    objects = render(metrics={"podMonitor": {"enabled": True}}, watchNamespaces=["nlp", "vision"])
    scrapes = yaml.safe_load(only(objects, "ConfigMap")["data"]["drumline.yml"])["scrape_configs"]
    training, monitor = scrapes[2], only(objects, "PodMonitor")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    (ours,), (theirs,) = training["metric_relabel_configs"], endpoint["metricRelabelings"]
    assert theirs == {
        "sourceLabels": ours["source_labels"],
        "regex": ours["regex"],
        "action": ours["action"],
    }
    assert monitor["sampleLimit"] == training["sample_limit"] > 0
    assert monitor["bodySizeLimit"] == training["body_size_limit"]
    assert endpoint["followRedirects"] is training["follow_redirects"] is False
    namespaces = training["kubernetes_sd_configs"][0]["namespaces"]["names"]
    assert namespaces == monitor["namespaceSelector"]["matchNames"] == ["nlp", "vision"]
    assert "honor_labels" not in training
    assert "honorLabels" not in endpoint


def test_everything_optional_can_be_left_out(render: Render) -> None:
    objects = render(
        replicas=1,
        crds={"install": False},
        rbac={"create": False, "userRoles": False},
        serviceAccount={"create": False, "name": "given"},
        trainingPriorityClass={"create": False},
        signingKey={"existingSecret": "mine"},
        flowControl={"enabled": False},
        metrics={"service": False, "scrapeConfig": False},
        networkPolicy={"enabled": False},
    )
    assert [each_object["kind"] for each_object in objects] == ["Deployment"]
    assert pod_of(objects)["spec"]["serviceAccountName"] == "given"


def test_places_for_additions_of_ones_own(render: Render) -> None:
    objects = render(
        podLabels={"team": "platform"},
        podAnnotations={"note": "here"},
        nodeSelector={"pool": "system"},
        tolerations=[{"key": "system", "operator": "Exists"}],
        affinity={"nodeAffinity": {}},
        priorityClassName="system-cluster-critical",
        imagePullSecrets=[{"name": "registry"}],
        extraEnv=[{"name": "TZ", "value": "UTC"}],
        extraVolumes=[{"name": "site", "emptyDir": {}}],
        extraVolumeMounts=[{"name": "site", "mountPath": "/site"}],
        serviceAccount={"annotations": {"identity": "cloud"}},
        networkPolicy={"metricsFrom": [{"namespaceSelector": {}}], "apiServerPorts": [26443]},
    )
    template = pod_of(objects)
    pod, (container,) = template["spec"], template["spec"]["containers"]
    assert template["metadata"]["labels"]["team"] == "platform"
    assert template["metadata"]["annotations"] == {"note": "here"}
    assert pod["nodeSelector"] == {"pool": "system"}
    assert pod["tolerations"][2:] == [{"key": "system", "operator": "Exists"}]
    assert pod["affinity"]["nodeAffinity"] == {}
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert container["env"][-1] == {"name": "TZ", "value": "UTC"}
    assert pod["volumes"][-1] == {"name": "site", "emptyDir": {}}
    assert container["volumeMounts"][-1] == {"name": "site", "mountPath": "/site"}
    assert only(objects, "ServiceAccount")["metadata"]["annotations"] == {"identity": "cloud"}
    policy = only(objects, "NetworkPolicy")["spec"]
    assert policy["ingress"][0]["from"] == [{"namespaceSelector": {}}]
    assert policy["egress"][0]["ports"] == [{"protocol": "TCP", "port": 26443}]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"replica": 2}, "replica"),
        ({"image": {"tagg": "1"}}, "tagg"),
        ({"trainerPod": {"initContainers": []}}, "initContainers"),
        ({"replicas": 0}, "replicas"),
        ({"leaderElection": {"leaseSeconds": 5}}, "leaseSeconds"),
        ({"scheduling": {"moves": {"gpuSeconds": 2e12}}}, "gpuSeconds"),
        ({"logLevel": "loud"}, "logLevel"),
        ({"image": {"digest": "sha256:short"}}, "digest"),
        ({"trainingPriorityClass": {"value": 2_000_000_000}}, "value"),
        ({"metrics": {"service": False, "serviceMonitor": {"enabled": True}}}, "metrics.service"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name"),
        ({"archive": {"enabled": True}}, "archive.url"),
        ({"archive": {"enabled": True, "url": "s3://b", "existingClaim": "c"}}, "not both"),
        ({"archive": {"url": "ftp://b"}}, "url"),
        ({"notifications": {"enabled": True}}, "notifications.config.channels"),
        ({"notifications": {"config": {"chanels": {}}}}, "chanels"),
    ],
)
def test_bad_values_are_refused_by_name(render: Render, values: Json, names: str) -> None:
    with pytest.raises(ValueError, match=names):
        render(**values)


def leaves(node: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Every object of the schema with fixed keys, by path."""
    if node.get("type") == "object" and "properties" in node:
        yield path, node
        for name, below in node["properties"].items():
            yield from leaves(below, f"{path}.{name}".lstrip("."))


def test_production_values_have_monitors_rules_shares_and_closed_queues(helm: Path) -> None:
    command = [helm, "template", "drumline", CHART, f"--namespace={NAMESPACE}", "--skip-tests"]
    command += [f"--values={CHART / 'values-production.yaml'}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    objects = [entry for entry in yaml.safe_load_all(done.stdout) if entry]
    kinds = {entry["kind"] for entry in objects}
    assert {"PodDisruptionBudget", "ServiceMonitor", "PodMonitor", RULE} <= kinds
    assert only(objects, "Deployment")["spec"]["replicas"] >= 2
    assert preferred_apart(objects)
    denying = {
        entry["spec"]["policyName"].removeprefix("drumline-operator-")
        for entry in objects
        if entry["kind"] == "ValidatingAdmissionPolicyBinding"
        and entry["spec"]["validationActions"] == ["Deny"]
    }
    assert {"user", "queue-rights", "foreign-pods", "closed-queues"} <= denying
    assert pod_of(objects)["spec"]["priorityClassName"] == "system-cluster-critical"
    settings = from_environment(environment(objects))
    assert (settings.scheduling.waiting, settings.scheduling.order) == ("Backfill", "FairShare")


def test_every_queue_of_the_production_site_is_closed() -> None:
    manifests = list(yaml.safe_load_all((ROOT / "examples/production-site.yaml").read_text()))
    pools = tuple(
        PoolFact(name=entry["metadata"]["name"], spec=parse(GpuPoolSpec, entry["spec"]))
        for entry in manifests
        if entry["kind"] == "GpuPool"
    )
    site = tuple(
        QueueFact(name=entry["metadata"]["name"], spec=parse(TrainingQueueSpec, entry["spec"]))
        for entry in manifests
        if entry["kind"] == "TrainingQueue"
    )
    (result,) = queues(site, pools, ())
    assert isinstance(result, Passed)
    usable = {
        (entry["metadata"]["namespace"], queue)
        for entry in manifests
        if entry["kind"] == "Role"
        for rule in entry["rules"]
        if (rule["resources"], rule["verbs"]) == (["trainingqueues"], ["use"])
        for queue in rule["resourceNames"]
    }
    labels = {
        entry["metadata"]["name"]: entry["metadata"]["labels"]
        for entry in manifests
        if entry["kind"] == "Namespace"
    }
    assert usable == {
        (namespace, queue.name)
        for queue in site
        if queue.name != "all-teams"
        for namespace in labels
        if namespace in (queue.spec.namespaces or ())
        or (
            queue.spec.namespace_selector is not None
            and queue.spec.namespace_selector.selects(labels[namespace])
        )
    }


def test_what_artifact_hub_shows_is_what_the_chart_installs(defaults: list[Json]) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    shown = {
        name.removeprefix("artifacthub.io/"): yaml.safe_load(text)
        for name, text in chart["annotations"].items()
    }
    definitions = {
        (entry["spec"]["names"]["kind"], version["name"], entry["metadata"]["name"])
        for entry in defaults
        if entry["kind"] == "CustomResourceDefinition"
        for version in entry["spec"]["versions"]
    }
    assert {(crd["kind"], crd["version"], crd["name"]) for crd in shown["crds"]} == definitions
    models = {
        "GpuPool": GpuPoolSpec,
        "TrainingQueue": TrainingQueueSpec,
        "TrainingJob": TrainingJobSpec,
    }
    examples = {example["kind"]: example["spec"] for example in shown["crdsExamples"]}
    assert examples.keys() == models.keys()
    for kind, spec in examples.items():
        parse(models[kind], spec)
    settings = from_environment(environment(defaults))
    assert [entry["image"] for entry in shown["images"]] == [
        settings.operator_image,
        settings.trainer_image,
    ]


def test_labels_of_ones_own_are_on_every_object_and_select_nothing(
    render: Render, defaults: list[Json]
) -> None:
    objects = render(commonLabels={"team": "platform"}, tests=True)
    unlabelled = [
        entry["metadata"]["name"]
        for entry in objects
        if entry["metadata"].get("labels", {}).get("team") != "platform"
    ]
    assert all(name.endswith(".drumline.dev") for name in unlabelled)
    assert pod_of(objects)["metadata"]["labels"]["team"] == "platform"
    for kind, path in (("Deployment", "selector"), ("Service", "selector")):
        assert only(objects, kind)["spec"][path] == only(defaults, kind)["spec"][path]


def test_manifests_and_a_spread_of_ones_own(render: Render) -> None:
    spread = [
        {"maxSkew": 1, "topologyKey": "example.com/rack", "whenUnsatisfiable": "DoNotSchedule"}
    ]
    name = "{{ .Release.Name }}-extra"
    extra = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
    objects = render(extraObjects=[extra], topologySpreadConstraints=spread)
    assert only(objects, "Secret")["metadata"]["name"] == "drumline-extra"
    assert pod_of(objects)["spec"]["topologySpreadConstraints"] == spread
    assert "affinity" not in pod_of(objects)["spec"]
    single = render(replicas=1, topologySpreadConstraints=spread)
    assert pod_of(single)["spec"]["topologySpreadConstraints"] == spread


def test_the_schema_knows_every_key_of_the_values_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(values, schema, cls=jsonschema.Draft7Validator)
    optional = {"": {"global"}, "resources": {"claims"}}
    for path, node in leaves(schema):
        below = values
        for name in filter(None, path.split(".")):
            below = below[name]
        assert node["additionalProperties"] is False, path
        assert set(node["properties"]) == set(below) | optional.get(path, set()), path
        assert all("description" in entry for entry in node["properties"].values()), path


def test_a_job_s_user_is_who_sends_it_where_the_owner_wants_that(
    render: Render, defaults: list[Json]
) -> None:
    def about_users(objects: list[Json]) -> list[Json]:
        return [
            each_object
            for each_object in objects
            if each_object["metadata"]["name"] == "drumline-operator-user"
        ]

    assert about_users(defaults) == []
    trusted = "system:serviceaccount:portal:submit"
    objects = about_users(render(userPolicy={"enabled": True, "trusted": [trusted]}))
    policy = only(objects, "ValidatingAdmissionPolicy")
    binding = only(objects, "ValidatingAdmissionPolicyBinding")
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    (_, exception) = policy["spec"]["matchConditions"]
    assert f'["{trusted}"].exists(' in exception["expression"]


def test_foreign_pods_name_a_queue_where_the_owner_wants_that(
    render: Render, defaults: list[Json]
) -> None:
    def policies(objects: list[Json]) -> dict[str, Json]:
        names = ("drumline-operator-foreign-pods", "drumline-operator-closed-queues")
        return {
            each["metadata"]["name"]: each
            for each in objects
            if each["kind"] == "ValidatingAdmissionPolicy" and each["metadata"]["name"] in names
        }

    assert policies(defaults) == {}
    values = {"enabled": True, "gpuResources": ["amd.com/gpu"], "exemptNamespaces": ["tools"]}
    rendered = policies(render(foreignPods=values))
    assert len(rendered) == 2
    for policy in rendered.values():
        (names,) = policy["spec"]["matchConstraints"]["namespaceSelector"]["matchExpressions"]
        assert names["operator"] == "NotIn"
        assert "tools" in names["values"]
        assert len(names["values"]) == 2
        assert "system:serviceaccount:" in policy["spec"]["matchConditions"][0]["expression"]
    variables = rendered["drumline-operator-foreign-pods"]["spec"]["variables"]
    expressions = {each["name"]: each["expression"] for each in variables}
    assert 'name in ["amd.com/gpu"]' in expressions["hasGpus"]
