"""The chart on a real API server: every object is accepted, and an upgrade keeps what must stay."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator

import pytest
import yaml

from tests.integration.api.conftest import ROOT, Helm, Kubectl, Server
from tests.integration.api.manifests import Json, manifest
from tests.patience import HANG_SECONDS

pytestmark = pytest.mark.extended(keep=7)

CHART = ROOT / "helm/drumline"
REGISTRY = "--set=imageRegistry=registry.example.com"


@pytest.fixture(scope="module")
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace that enforces the strictest Pod Security level."""
    name = f"chart-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def test_the_api_server_accepts_every_object(helm: Helm, kubectl: Kubectl, namespace: str) -> None:
    template = ("template", "drumline", CHART, "-n", namespace, "--set=replicas=2", REGISTRY)
    rendered = helm(*template, "--no-hooks")
    apply = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
    accepted = kubectl(*apply, "-f", "-", "-o", "name", stdin=rendered).split()
    assert (
        len(accepted)
        == len([manifest for manifest in yaml.safe_load_all(rendered) if manifest])
        == 29
    )
    # of `helm test`; its pod is refused where its account is not there yet
    tests = [each for each in yaml.safe_load_all(helm(*template)) if each and _is_hook(each)]
    kubectl("create", "serviceaccount", "drumline-doctor", "-n", namespace)
    stdin = yaml.safe_dump_all(tests)
    assert len(kubectl(*apply, "-f", "-", "-o", "name", stdin=stdin).split()) == len(tests) == 4


def _is_hook(manifest: Json) -> bool:
    return "helm.sh/hook" in manifest["metadata"].get("annotations", {})


def test_the_operators_pod_passes_restricted_pod_security(
    helm: Helm, kubectl: Kubectl, namespace: str
) -> None:
    rendered = helm("template", "drumline", CHART, "-n", namespace, REGISTRY)
    (template,) = [
        manifest["spec"]["template"]
        for manifest in yaml.safe_load_all(rendered)
        if manifest and manifest["kind"] == "Deployment"
    ]
    spec = {**template["spec"], "serviceAccountName": "default"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator"}, "spec": spec}
    create = ("create", "--dry-run=server", "--validate=strict", "-n", namespace, "-o", "name")
    assert kubectl(*create, "-f", "-", stdin=json.dumps(pod)).strip() == "pod/operator"


def test_with_the_user_policy_a_job_s_user_is_its_sender(
    helm: Helm, kubectl: Kubectl, server: Server, namespace: str
) -> None:
    objects = yaml.safe_load_all(
        helm(
            "template", namespace, CHART, "-n", namespace, "--set=userPolicy.enabled=true", REGISTRY
        )
    )
    policy, binding = (
        policy_object
        for policy_object in objects
        if policy_object
        and "ValidatingAdmission" in policy_object["kind"]
        and policy_object["metadata"]["name"].endswith("-user")
    )
    here = {"matchLabels": {"kubernetes.io/metadata.name": server.namespace}}
    binding["spec"]["matchResources"] = {"namespaceSelector": here}
    both = yaml.safe_dump_all([policy, binding])
    kubectl("apply", "-f", "-", stdin=both)
    try:
        foreign, own, anonymous = (
            manifest("TrainingJob", **user)
            for user in ({"user": "bob"}, {"user": "drumline-admin"}, {})
        )
        deadline = time.monotonic() + HANG_SECONDS
        while (answer := server.create(foreign, dry_run=True)).code == 201:
            assert time.monotonic() < deadline, "the policy has no effect"
            time.sleep(0.2)  # the API server takes policies in without saying when
        assert "spec.user must be drumline-admin, the user who submits the job" in answer.message
        assert "spec.user must be drumline-admin" in server.create(anonymous, dry_run=True).message
        assert server.create(own, dry_run=True).code == 201
    finally:
        kubectl("delete", "-f", "-", stdin=both)


@pytest.fixture(scope="module")
def release(helm: Helm, namespace: str) -> Iterator[str]:
    """The chart installed beside whatever else the control plane serves; its release name."""
    name = f"drumline-{namespace}"
    values = ["--set=crds.install=false", f"--set=trainingPriorityClass.name={name}", REGISTRY]
    helm("install", name, CHART, "-n", namespace, *values)
    yield name
    helm("uninstall", name, "-n", namespace)


def test_an_upgrade_changes_what_is_asked_for_and_nothing_else(
    helm: Helm, kubectl: Kubectl, namespace: str, release: str
) -> None:
    def environment() -> dict[str, Json]:
        text = kubectl("get", "deployment", f"{release}-operator", "-n", namespace, "-o", "yaml")
        (container,) = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"]
        return {entry["name"]: entry for entry in container["env"]}

    before = environment()
    helm("upgrade", release, CHART, "-n", namespace, "--reuse-values", "--set=logLevel=debug")
    changed = {"name": "DRUMLINE_LOG_LEVEL", "value": "debug"}
    assert environment() == {**before, "DRUMLINE_LOG_LEVEL": changed}


def test_what_the_notes_say_to_apply_is_accepted(
    helm: Helm, kubectl: Kubectl, namespace: str, release: str
) -> None:
    """From a packaged chart: nothing of the repository is named."""
    notes = helm("get", "notes", release, "-n", namespace)
    texts = re.findall(r"<<EOF\n(.*?)^EOF$", notes, re.DOTALL | re.MULTILINE)
    for text in texts:
        kubectl("apply", "--dry-run=server", "-n", namespace, "-f", "-", stdin=text)
    kinds = [each["kind"] for text in texts for each in yaml.safe_load_all(text)]
    assert kinds == ["GpuPool", "TrainingQueue", "TrainingJob"]
    assert "examples/" not in notes
    assert "kubectl get trainingjobs --watch" in notes


def may(kubectl: Kubectl, namespace: str, release: str, attempt: str, *, within: str) -> bool:
    """Whether the release's operator may do `VERB GROUP RESOURCE[/SUBRESOURCE] [NAME]`."""
    verb, group, resource, *name = attempt.split()
    kind, _, subresource = resource.partition("/")
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{namespace}:{release}-operator",
            "resourceAttributes": {
                "verb": verb,
                "group": "" if group == "core" else group,
                "resource": kind,
                "subresource": subresource,
                "name": "".join(name),
                "namespace": within,
            },
        },
    }
    answer = kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review))
    return json.loads(answer)["status"]["allowed"]


def test_the_operator_changes_nothing_of_a_pod_but_its_labels(
    kubectl: Kubectl, namespace: str, release: str
) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": namespace},
        "spec": {"containers": [{"name": "trainer", "image": "trainer:1"}]},
    }
    kubectl("create", "-f", "-", stdin=json.dumps(pod))
    operator = f"--as=system:serviceaccount:{namespace}:{release}-operator"
    image = '{"spec":{"containers":[{"name":"trainer","image":"other:%d"}]}}'
    refusal, tries = "", 0
    while (
        "can change only the labels" not in refusal
    ):  # a policy takes a moment until it is in force
        tries += 1
        assert tries < 500, "the policy has no effect"
        try:
            kubectl("patch", "pod", namespace, operator, "-p", image % tries)
        except AssertionError as error:
            refusal = str(error)
    labels = '{"metadata":{"labels":{"drumline.dev/protected":"false"}}}'
    kubectl("patch", "pod", namespace, operator, "-p", labels)
    kubectl("delete", "pod", namespace, "--force")


@pytest.mark.parametrize(
    "attempt",
    [
        "watch drumline.dev trainingjobs",
        "patch drumline.dev trainingjobs/status",
        "create core pods",
        "deletecollection core pods",
        "patch core pods",
        "create core secrets",
        "patch events.k8s.io events",
    ],
)
def test_the_operator_may_do_its_work_anywhere(
    kubectl: Kubectl, namespace: str, release: str, attempt: str
) -> None:
    assert may(kubectl, namespace, release, attempt, within="default")


@pytest.mark.parametrize(
    ("attempt", "within"),
    [
        ("update coordination.k8s.io leases drumline-operator", "default"),
        ("get core secrets", "default"),
        ("list core secrets", "default"),
        ("create core pods/exec", "default"),
        ("update core pods", "default"),
        ("patch core pods/status", "default"),
        ("create core pods/binding", "default"),
        ("patch core nodes", ""),
        ("patch drumline.dev trainingjobs", "default"),
        ("patch drumline.dev trainingqueues", ""),
        ("get core configmaps", "default"),
        ("impersonate core users", ""),
        ("bind rbac.authorization.k8s.io clusterroles", ""),
    ],
)
def test_the_operator_may_not_do_more(
    kubectl: Kubectl, namespace: str, release: str, attempt: str, within: str
) -> None:
    assert not may(kubectl, namespace, release, attempt, within=within)


def test_the_operator_holds_its_own_lease_and_no_other(
    kubectl: Kubectl, namespace: str, release: str
) -> None:
    update = "update coordination.k8s.io leases"
    assert may(kubectl, namespace, release, f"{update} drumline-operator", within=namespace)
    assert not may(kubectl, namespace, release, f"{update} other", within=namespace)
