"""The chart as Helm renders it: what is in it, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from drumline.lifecycle.manifests.shared_objects import SHARED_NAME
from drumline.settings import Settings, from_environment
from drumline_addons.notifications.channels import parsed
from drumline_api import crds
from drumline_api.gpupool import GpuPoolSpec
from drumline_api.load import parse
from drumline_api.policy import SchedulingPolicy
from drumline_api.resource_names import NETWORK_DEVICES
from drumline_api.trainingjob import TrainingJobSpec
from drumline_api.trainingqueue import TrainingQueueSpec
from drumline_cli.doctor.checks.tenants import queues
from drumline_cli.doctor.facts import PoolFact, QueueFact
from drumline_cli.doctor.results import Passed
from drumline_scheduler.capture import MAX_BYTES
from tools.cluster.binaries import ensure_binaries
from tools.monitoring import generate

pytestmark = pytest.mark.extended(keep=15)

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm/drumline"
NAMESPACE = "drumline-system"
RULE = "PrometheusRule"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

Json = dict[str, Any]
Render = Callable[..., list[Json]]


class Strict(yaml.SafeLoader):
    """A loader that refuses repeated keys, as kustomize does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        assert len({*keys}) == len(keys), f"repeated: {keys}"
        return super().construct_mapping(node, deep=deep)


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
        release: str = "drumline",
        namespace: str = NAMESPACE,
        serves: Sequence[str] = (),
        **values: Any,
    ) -> list[Json]:
        chosen = [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]
        command = [helm, "template", release, CHART, f"--namespace={namespace}"]
        command += [f"--values={CHART / 'tests/images.yaml'}", *chosen]
        command += [] if tests else ["--skip-tests"]
        command += [f"--api-versions={group}" for group in serves]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise ValueError(done.stderr)
        return [item for item in yaml.load_all(done.stdout, Loader=Strict) if item]

    return objects


@pytest.fixture(scope="session")
def defaults(render: Render) -> list[Json]:
    return render()


def only(objects: list[Json], kind: str) -> Json:
    (matching,) = [each_object for each_object in objects if each_object["kind"] == kind]
    return matching


def name_of(manifest: Json) -> str:
    return manifest["metadata"]["name"]


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
        ("ClusterRole", "drumline-reader"),
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
        ("ValidatingAdmissionPolicy", "drumline-operator-created"),
        ("ValidatingAdmissionPolicy", "drumline-operator-pods"),
        ("ValidatingAdmissionPolicy", "drumline-operator-queue-overrides"),
        ("ValidatingAdmissionPolicy", "trainingjobs.drumline.dev"),
        ("ValidatingAdmissionPolicyBinding", "drumline-operator-created"),
        ("ValidatingAdmissionPolicyBinding", "drumline-operator-pods"),
        ("ValidatingAdmissionPolicyBinding", "drumline-operator-queue-overrides"),
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


def test_labels_of_pods_replace_those_of_all_objects(render: Render) -> None:
    more = {"enabled": True, "podLabels": {"team": "pods"}}
    objects = render(
        commonLabels={"team": "objects"},
        podLabels=more["podLabels"],
        ui=more,
        notifications=NOTIFICATIONS | more,
        archive={"url": "s3://bucket/archive", **more},
    )
    deployments = [each for each in objects if each["kind"] == "Deployment"]
    assert len(deployments) == 4
    for each in deployments:
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert (each["metadata"]["labels"]["team"], labels["team"]) == ("objects", "pods")
        assert each["spec"]["selector"]["matchLabels"].items() <= labels.items()


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


def test_a_section_without_a_line_of_its_own_is_its_default(render: Render) -> None:
    """A key with nothing but comments below it is null, which Helm takes from the values."""
    objects = render(
        trainerPod=None,
        scheduling=None,
        networkPolicy={"trainingMetricsFrom": None},
        userPolicy={"enabled": True, "trusted": None},
        ui={"enabled": True},
    )
    for each in objects:
        if each["kind"] == "Deployment":
            settings = from_environment(environment([each]))
            assert (settings.scheduling, settings.trainer_pod) == (SchedulingPolicy(), {})
            assert settings.metrics_from == []
    (policy,) = (
        each
        for each in objects
        if name_of(each) == "drumline-operator-user" and each["kind"].endswith("Policy")
    )
    assert "null" not in str(policy["spec"]["matchConditions"])


def test_the_longest_capture_has_room_in_the_pod(defaults: list[Json]) -> None:
    volumes = {item["name"]: item for item in pod_of(defaults)["spec"]["volumes"]}
    size, unit = volumes["tmp"]["emptyDir"]["sizeLimit"][:-2], 1 << 20
    assert int(size) * unit > MAX_BYTES


def test_the_rights_name_the_objects_that_the_operator_shares(defaults: list[Json]) -> None:
    named = {
        name
        for entry in defaults
        if entry["kind"] == "ClusterRole"
        for rule in entry["rules"]
        if "networkpolicies" in rule["resources"] or "poddisruptionbudgets" in rule["resources"]
        for name in rule.get("resourceNames", [])
    }
    assert named == {SHARED_NAME}


def test_names_that_look_like_numbers_stay_text(render: Render) -> None:
    objects = render(
        release="7100",
        namespace="7101",
        serves=["security.openshift.io/v1"],
        nameOverride="7102",
        watchNamespaces=["7103"],
        installation="7104",
        firstQueue={"gpus": 1, "name": "7105"},
        trainingPriorityClass={"name": "7106"},
        priorityClassName="7107",
        signingKey={"existingSecret": "7108"},
        archive={"enabled": True, "existingClaim": "7109"},
        serviceAccount={"create": False, "name": "7110"},
        rbac={"openshiftConstraint": "7111"},
        notifications=NOTIFICATIONS
        | {"config": {"channels": {"a": {"slack": {"urlFrom": {"secret": "7112", "key": "k"}}}}}},
    )
    text = json.dumps(objects)
    assert {f"{number}" for number in range(7100, 7113)} <= {*re.findall(r'"(71\d\d)"', text)}
    assert not re.findall(r" 71\d\d[],}]", text)


def test_a_label_of_all_objects_and_of_one_stands_once(render: Render) -> None:
    chosen = {"enabled": True, "labels": {"release": "kps", "drumline.dev/watches": "ours"}}
    objects = render(
        commonLabels={"release": "all", "drumline.dev/watches": "all", "grafana_dashboard": "0"},
        metrics=dict.fromkeys(("serviceMonitor", "podMonitor", "rules"), chosen)
        | {"dashboards": {"enabled": True}},
    )
    labels = {
        each["kind"]: each["metadata"]["labels"] for each in objects if "-operator" in name_of(each)
    }
    assert labels["ServiceMonitor"]["release"] == "kps"
    assert labels["ClusterRole"]["drumline.dev/watches"] == "everything"
    board = next(each for each in objects if "-board-" in name_of(each))
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_two_renders_are_the_same(render: Render, defaults: list[Json]) -> None:
    assert render() == defaults


def test_the_crds_and_their_policy_are_those_of_the_models_and_are_kept(
    defaults: list[Json],
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


def test_the_scrape_configuration_finds_operator_and_training_pods(defaults: list[Json]) -> None:
    text = only(defaults, "ConfigMap")["data"]["drumline.yml"]
    reporters, operator, training = yaml.safe_load(text)["scrape_configs"]
    for ours in (reporters, operator):
        assert ours["kubernetes_sd_configs"][0]["namespaces"] == {"names": [NAMESPACE]}
        assert ours["honor_labels"]
    assert operator["relabel_configs"][0]["regex"] == "drumline;operator;http"
    assert reporters["relabel_configs"][0]["regex"] == "drumline;(notifier|archiver);http"
    assert training["relabel_configs"][0]["regex"] == ".+;Running;agent"


def test_alerts_name_the_namespace_of_the_release(render: Render) -> None:
    values = {"rules": {"enabled": True, "labels": {"release": "kps"}}}
    rule = only(render(namespace="training-system", metrics=values), RULE)
    assert rule["metadata"]["labels"]["release"] == "kps"
    text = generate.generated()[generate.ALERTS].replace("drumline-system", "training-system")
    leader = 'absent(drumline_leader{namespace="training-system"})'  # not of another namespace
    text = text.replace("absent(drumline_leader)", leader)
    assert rule["spec"] == yaml.safe_load(text)
    alerts = {each.get("alert"): each for each in rule["spec"]["groups"][0]["rules"]}
    assert leader in alerts["DrumlineNoLeader"]["expr"]
    assert "-n training-system" in alerts["DrumlineOperatorRestarts"]["annotations"]["command"]


def test_commands_of_alerts_name_objects_of_the_release(render: Render) -> None:
    objects = render(
        release="gpus",
        metrics={"rules": {"enabled": True}},
        notifications=NOTIFICATIONS,
        archive={"enabled": True, "url": "s3://bucket/archive"},
        signingKey={"existingSecret": "our-key"},
    )
    text = json.dumps(only(objects, RULE)["spec"])
    named = set(re.findall(r"deploy/([\w-]+)", text))
    assert named == {name_of(each) for each in objects if each["kind"] == "Deployment"}
    assert set(re.findall(r"describe secret -n \S+ ([\w-]+)", text)) == {"our-key"}


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


def leaves(node: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Every object of the schema with fixed keys, by path."""
    if node.get("type") == "object" and "properties" in node:
        yield path, node
        for name, below in node["properties"].items():
            yield from leaves(below, f"{path}.{name}".lstrip("."))


def test_foreign_pods_may_request_the_network_devices_that_jobs_may(render: Render) -> None:
    objects = render(**{"foreignPods.enabled": True})
    (policy,) = (
        each
        for each in objects
        if name_of(each).endswith("-foreign-pods") and "variables" in each["spec"]
    )
    (uncharged,) = (each for each in policy["spec"]["variables"] if each["name"] == "uncharged")
    assert f"!{json.dumps(list(NETWORK_DEVICES), separators=(',', ':'))}" in uncharged["expression"]


def test_production_values_choose_backfill_and_fair_shares(helm: Path) -> None:
    command = [helm, "template", "drumline", CHART, f"--namespace={NAMESPACE}", "--skip-tests"]
    command += [f"--values={CHART / 'values-production.yaml'}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    objects = [entry for entry in yaml.safe_load_all(done.stdout) if entry]
    scheduling = from_environment(environment(objects)).scheduling
    assert (scheduling.waiting, scheduling.order) == ("Backfill", "FairShare")


def test_the_page_reads_what_its_pod_mounts_and_decides_as_the_operator(
    render: Render, defaults: list[Json]
) -> None:
    objects = [entry for entry in render(ui={"enabled": True}) if entry not in defaults]
    (container,) = pod_of(objects)["spec"]["containers"]
    (mount,) = container["volumeMounts"]
    assert Settings().api_server_ca == Path(mount["mountPath"]) / "ca.crt"
    policy = from_environment(environment(defaults)).scheduling
    assert from_environment(environment(objects)).scheduling == policy


def test_the_archiver_and_the_notifier_read_their_settings(render: Render) -> None:
    archived = {"enabled": True, "url": "s3://bucket/jobs", "days": 30}
    objects = render(archive=archived, notifications=NOTIFICATIONS)
    archiver, notifier = (
        from_environment(environment([entry for entry in objects if name_of(entry) == name]))
        for name in ("drumline-archiver", "drumline-notifier")
    )
    assert (archiver.archive, archiver.archive_days) == ("s3://bucket/jobs", 30)
    (role,) = (e for e in objects if (e["kind"], name_of(e)) == ("Role", "drumline-notifier"))
    assert role["rules"][1]["resourceNames"] == [notifier.notifications_record]


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
