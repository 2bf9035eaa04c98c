"""What takes more than one request: each begins with the specs, and is looked at when all ran."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.e2e.hostile.specs import SLEEP, template
from tests.e2e.hostile.tenant import Refusal, Tenant
from tests.e2e.rehearsals import Rehearsal
from tests.e2e.site import Site
from tests.kube import Json, phase_is
from tools.cluster.rest import ApiStatusError

FORGED: Json = {
    "phase": "Running",
    "generation": 1 << 40,
    "epoch": 1 << 40,
    "priority": 1 << 30,
    "assignment": {"gpuPool": "gpus", "prefix": "node-", "nodes": ["0"], "generation": 1},
}
FLIPS = 10
LIVES = 6
BULK = 170
FORBIDDEN = 403
SMUGGLED: Json = {
    "hostNetwork": True,
    "hostPID": True,
    "nodeName": "node-2",
    "serviceAccountName": "default",
    "automountServiceAccountToken": True,
    "priorityClassName": "system-node-critical",
    "securityContext": {"privileged": True, "runAsUser": 0},
    "initContainers": [{"name": "drumline-join", "image": "x", "command": ["true"]}],
    "containers": [{"name": "trainer", "image": "x"}],
    "ports": [{"containerPort": 29400, "hostPort": 29400}],
    "lifecycle": {"preStop": {"exec": {"command": ["sleep", "3600"]}}},
    "shareProcessNamespace": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One deed."""

    name: str
    begin: Callable[[Tenant, Rehearsal], None]
    check: Callable[[Tenant, Rehearsal], None]


def _try(tenant: Tenant, name: str, act: Callable[[], Any]) -> None:
    try:
        act()
    except ApiStatusError as error:
        tenant.refusals[name] = Refusal(error.code, str(error))


def _forge_status(tenant: Tenant, _: Rehearsal) -> None:
    namespace = tenant.site.namespace
    body = {"apiVersion": "drumline.dev/v1alpha1", "kind": "TrainingJob"}
    metadata = {"name": "forged-status", "namespace": namespace}
    spec = {"queue": "nobodys", "template": SLEEP}
    tenant.kube.create({**body, "metadata": metadata, "spec": spec, "status": FORGED})
    for name, at in (("by-patch", namespace), ("of-the-neighbour", "default")):
        _try(
            tenant,
            f"status-{name}",
            lambda at=at: tenant.kube.patch_status("trainingjobs", "forged-status", FORGED, at),
        )


def _status_is_not_forged(tenant: Tenant, _: Rehearsal) -> None:
    assert tenant.refusals["status-by-patch"].code == FORBIDDEN
    assert tenant.refusals["status-of-the-neighbour"].code == FORBIDDEN
    job = tenant.site.wait("forged-status", phase_is("Pending"))
    assert not job["status"].keys() & {"assignment", "priority", "epoch"}


def _forge_pods(tenant: Tenant, neighbour: Rehearsal) -> None:
    """One's own pods with the neighbour's labels and its owner, one for each name to come."""
    site = neighbour.site
    (model, *_) = site.pods(neighbour.name)
    labels = model["metadata"]["labels"]
    owner = model["metadata"]["ownerReferences"]
    for generation in (1, 2, 3):
        name = f"{neighbour.name}-0-g{generation}"
        marks = {**labels, "drumline.dev/generation": str(generation)}
        pod = _pod(name, tenant.site.namespace, labels=marks, ownerReferences=owner)
        _try(tenant, "pod-by-user", lambda pod=pod: tenant.kube.create(pod))
        _try(tenant, "pod-by-colleague", lambda pod=pod: tenant.colleague.create(pod))


def _pod(name: str, namespace: str, **metadata: Any) -> Json:
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "trainer",
        "image": SLEEP["image"],
        "command": SLEEP["command"],
        "securityContext": security,
    }
    profile = {"type": "RuntimeDefault"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {
            "containers": [container],
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": profile,
            },
        },
    }


def _pods_are_nobodys(tenant: Tenant, neighbour: Rehearsal) -> None:
    assert tenant.refusals["pod-by-user"].code == FORBIDDEN
    assert "pod-by-colleague" not in tenant.refusals
    assert neighbour.generation() == 1


def _squat(tenant: Tenant, _: Rehearsal) -> None:
    """Pods of the names and labels that a job of one's own is about to make."""
    labels = {
        "drumline.dev/job": "squatted",
        "drumline.dev/index": "0",
        "drumline.dev/generation": "1",
    }
    tenant.colleague.create(_pod("squatted-0-g1", tenant.site.namespace, labels=labels))
    tenant.submit("squatted", {**template(), "startDeadlineSeconds": 15})


def _squatted_job_runs(tenant: Tenant, _: Rehearsal) -> None:
    """At the cost of a start."""
    job = tenant.site.wait("squatted", phase_is("Running"), seconds=90)
    assert job["status"]["generation"] > 1


def forget_pods(site: Site) -> None:
    """Delete those that no job owns."""
    for pod in site.kube.list("pods", site.namespace):
        if "ownerReferences" not in pod["metadata"]:
            site.kube.delete("pods", pod["metadata"]["name"], site.namespace)


def _hold_on(tenant: Tenant, _: Rehearsal) -> None:
    tenant.submit("foreign-finalizer", template(), finalizers=["example.com/never"])


def _gives_its_gpus_back(tenant: Tenant, _: Rehearsal) -> None:
    """Though somebody else's finalizer keeps the object."""
    kube, namespace = tenant.site.kube, tenant.site.namespace
    tenant.site.wait("foreign-finalizer", phase_is("Running"))
    tenant.kube.delete("trainingjobs", "foreign-finalizer", namespace)
    chosen = "drumline.dev/job=foreign-finalizer"
    kube.wait_all("pods", namespace, lambda pods: not pods, labels=chosen)
    body = {"metadata": {"finalizers": None}}
    kube.patch("trainingjobs", "foreign-finalizer", body, namespace)


def _adopt(tenant: Tenant, neighbour: Rehearsal) -> None:
    """Be owned by the neighbour's job, which garbage collection does not find here."""
    site = neighbour.site
    owner = site.kube.get("trainingjobs", neighbour.name, site.namespace)
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": neighbour.name,
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    labels = {"drumline.dev/job-uid": owner["metadata"]["uid"], "drumline.dev/job": neighbour.name}
    tenant.submit("foreign-owner", template(), ownerReferences=[reference], labels=labels)


def _is_collected(tenant: Tenant, _: Rehearsal) -> None:
    tenant.site.kube.wait(
        "trainingjobs", "foreign-owner", tenant.site.namespace, lambda job: job is None
    )


def _flip_flop(tenant: Tenant, _: Rehearsal) -> None:
    tenant.submit("flip-flop", template())
    for number in range(FLIPS):
        body = {"spec": {"suspend": number % 2 == 0}}
        tenant.kube.patch("trainingjobs", "flip-flop", body, tenant.site.namespace)
    tenant.kube.patch(
        "trainingjobs", "flip-flop", {"spec": {"suspend": True}}, tenant.site.namespace
    )


def _sleeps(tenant: Tenant, _: Rehearsal) -> None:
    tenant.site.wait("flip-flop", phase_is("Suspended"))
    chosen = "drumline.dev/job=flip-flop"
    tenant.site.kube.wait_all("pods", tenant.site.namespace, lambda pods: not pods, labels=chosen)


def _live_again(tenant: Tenant, _: Rehearsal) -> None:
    for _life in range(LIVES):
        tenant.submit("again", template())
        tenant.kube.delete("trainingjobs", "again", tenant.site.namespace)
    tenant.submit("again", template())


def _lives_once(tenant: Tenant, _: Rehearsal) -> None:
    job = tenant.site.wait("again", phase_is("Running"))
    tenant.site.kube.wait_all(
        "pods",
        tenant.site.namespace,
        lambda pods: {_owner(pod) for pod in pods} == {job["metadata"]["uid"]} and len(pods) == 1,
        labels="drumline.dev/job=again",
    )


def _owner(pod: Json) -> str:
    return pod["metadata"]["ownerReferences"][0]["uid"]


def _smuggle(tenant: Tenant, _: Rehearsal) -> None:
    tenant.submit("smuggled", template(**SMUGGLED))


def _nothing_is_smuggled(tenant: Tenant, _: Rehearsal) -> None:
    tenant.site.wait("smuggled", phase_is("Running"))
    (pod,) = tenant.site.pods("smuggled")
    spec = pod["spec"]
    assert not spec.keys() & {"hostNetwork", "hostPID", "initContainers", "shareProcessNamespace"}
    assert spec["automountServiceAccountToken"] is False
    assert spec["priorityClassName"] == "drumline-training-pods"
    (container,) = spec["containers"]
    assert not container.keys() & {"ports", "lifecycle"}
    assert "privileged" not in container["securityContext"]
    assert spec["securityContext"]["runAsUser"] != 0


def _be_admitted(tenant: Tenant, _: Rehearsal) -> None:
    tenant.submit("raised", {**template(), "activeDeadlineSeconds": 600})


def _is_not_raised(tenant: Tenant, _: Rehearsal) -> None:
    namespace = tenant.site.namespace
    tenant.site.wait("raised", phase_is("Running"))
    while_suspended = "may change only while the job is suspended"
    for name, spec, words in (
        ("deadline", {"activeDeadlineSeconds": 31_536_000}, "may only become shorter"),
        ("no-deadline", {"activeDeadlineSeconds": None}, "may only become shorter"),
        ("size", {"nodes": 3}, while_suspended),
        ("template", {"template": {"runAsUser": 1}}, while_suspended),
        ("system", {"priorityClassName": "system-node-critical"}, "name another"),
    ):
        _try(
            tenant,
            f"raised-{name}",
            lambda spec=spec: tenant.kube.patch(
                "trainingjobs", "raised", {"spec": spec}, namespace
            ),
        )
        assert words in tenant.refusals[f"raised-{name}"].message


def _write_a_book(tenant: Tenant, _: Rehearsal) -> None:
    """As large as etcd takes: the pod, and each status, have to fit beside it."""
    tenant.submit("bulky", template(args=["x" * 8192] * BULK))


def _book_is_told(tenant: Tenant, _: Rehearsal) -> None:
    if "bulky" not in tenant.refusals:
        tenant.site.wait("bulky", lambda job: "phase" in (job or {}).get("status", {}))


DEEDS = tuple(
    Deed(name=name, begin=begin, check=check)
    for name, begin, check in (
        ("forged-status", _forge_status, _status_is_not_forged),
        ("forged-pods", _forge_pods, _pods_are_nobodys),
        ("squatted-names", _squat, _squatted_job_runs),
        ("foreign-finalizer", _hold_on, _gives_its_gpus_back),
        ("foreign-owner", _adopt, _is_collected),
        ("flip-flop", _flip_flop, _sleeps),
        ("again-and-again", _live_again, _lives_once),
        ("smuggled-fields", _smuggle, _nothing_is_smuggled),
        ("raised-limits", _be_admitted, _is_not_raised),
        ("bulky", _write_a_book, _book_is_told),
    )
)
