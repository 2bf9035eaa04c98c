"""A user who has TrainingJobs in one namespace and nothing else; a colleague has pods too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.hostile.specs import ONE_START, Runs, Spec
from tests.e2e.site import Site
from tests.kube import Json, Kube
from tools.cluster import kubectl
from tools.cluster.images import HOSTILE_IMAGE
from tools.cluster.rest import ApiStatusError

RBAC = "rbac.authorization.k8s.io"
SMALL: Json = {"cpu": "100m", "memory": "128Mi"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """What the API server said."""

    code: int
    message: str


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """The user.

    Attributes:
        site: the namespace; its `kube` is the administrator's.
        kube: what the user does.
        colleague: what somebody does who may create pods there.
        refusals: by the name of the request.
    """

    site: Site
    kube: Kube
    colleague: Kube
    refusals: dict[str, Refusal] = field(default_factory=dict[str, Refusal])

    def submit(self, name: str, spec: Json, **metadata: Any) -> None:
        """Create a job, or note the refusal."""
        self.play(Spec(name=name, spec=spec, expects=Runs(), metadata=metadata))

    def play(self, spec: Spec) -> None:
        """Send the request, and note the refusal."""
        namespace = self.site.namespace
        try:
            self.kube.create_text("trainingjobs", namespace, spec.body(namespace))
        except ApiStatusError as error:
            self.refusals[spec.name] = Refusal(error.code, str(error))

    def run_agent(self, name: str, *, nodes: int = 1, **spec: Any) -> None:
        """A job of the trainer whose image is ours: its agent plays the program of that name."""
        trainer = {"image": HOSTILE_IMAGE, "globalBatchSize": nodes}
        checkpoint = {"claimName": "checkpoints", "path": name}
        shape = {"nodes": nodes, "resources": SMALL, "recovery": ONE_START}
        self.submit(name, {**shape, "trainer": trainer, "checkpoint": checkpoint, **spec})

    def run_program(self, name: str, *, resources: Json = SMALL, **more: Any) -> None:
        """A template that plays the program of that name."""
        claim = {"claimName": "checkpoints"}
        template = {
            "image": HOSTILE_IMAGE,
            "command": ["python3", "-c", ""],
            "env": [{"name": "HOSTILE_PROGRAM", "value": name}],
            "volumes": [{"name": "out", "persistentVolumeClaim": claim}],
            "volumeMounts": [{"name": "out", "mountPath": "/out", "subPath": name}],
            "terminationGracePeriodSeconds": 1,
            **more,
        }
        recovery = {**ONE_START, "maxRestarts": 0, "maxInfrastructureRestarts": 1}
        self.submit(name, {"template": template, "resources": resources, "recovery": recovery})

    def folder(self, program: str) -> Path:
        """What a program reads and writes."""
        return self.site.checkpoints / program

    def plan(self, program: str, plan: Json) -> None:
        """Tell a program its targets."""
        folder = self.folder(program)
        folder.mkdir()
        folder.chmod(0o777)
        (folder / "plan.json").write_text(json.dumps(plan))

    def findings(self, program: str) -> Json | None:
        """What a program found out, once it has."""
        file = self.folder(program) / f"{program}.json"
        return json.loads(file.read_text()) if file.exists() else None


def allow(site: Site) -> Tenant:
    """The two service accounts, with the roles that the chart and Kubernetes ship."""
    namespace = site.namespace
    meta = {"namespace": namespace}
    pods = {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list", "watch"]}
    accounts = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**meta, "name": name}}
        for name in ("tenant", "colleague")
    ]
    reader = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Role",
        "metadata": {**meta, "name": "pods"},
        "rules": [pods],
    }
    bindings = [
        _binding(namespace, account, role, kind=kind)
        for account, role, kind in (
            ("tenant", "drumline-view", "ClusterRole"),
            ("tenant", "drumline-edit", "ClusterRole"),
            ("tenant", "pods", "Role"),
            ("colleague", "edit", "ClusterRole"),
        )
    ]
    _apply(site, [*accounts, reader, *bindings])
    user = f"system:serviceaccount:{namespace}"
    file = site.cluster.kubeconfig
    return Tenant(
        site=site,
        kube=Kube(file, user=f"{user}:tenant"),
        colleague=Kube(file, user=f"{user}:colleague"),
    )


def _binding(namespace: str, account: str, role: str, *, kind: str) -> Json:
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": f"{account}-{role}", "namespace": namespace},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [subject],
    }


def _apply(site: Site, manifests: Sequence[Json]) -> None:
    kubectl(site.cluster, "apply", "--filename=-", manifests=list(manifests))
