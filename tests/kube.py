"""How tests act on a cluster and wait for it: manifests in, objects out, watches instead of sleeps.

Independent of the operator's own client, so that neither can hide a fault of the other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from tests.patience import HANG_SECONDS
from tools.cluster.rest import TOO_MANY_REQUESTS, Api, ApiStatusError

Json = dict[str, Any]

WATCH_SECONDS = 20
"""Shorter than the client's patience with a silent connection."""

_GROUPS = {
    "trainingjobs": "drumline.dev/v1alpha1",
    "trainingqueues": "drumline.dev/v1alpha1",
    "gpupools": "drumline.dev/v1alpha1",
    "priorityclasses": "scheduling.k8s.io/v1",
    "poddisruptionbudgets": "policy/v1",
    "networkpolicies": "networking.k8s.io/v1",
    "customresourcedefinitions": "apiextensions.k8s.io/v1",
    "validatingadmissionpolicies": "admissionregistration.k8s.io/v1",
    "validatingadmissionpolicybindings": "admissionregistration.k8s.io/v1",
    "leases": "coordination.k8s.io/v1",
    "deployments": "apps/v1",
    "jobs": "batch/v1",
    "jobsets": "jobset.x-k8s.io/v1alpha2",
    "rayclusters": "ray.io/v1",
    "rayjobs": "ray.io/v1",
    "pytorchjobs": "kubeflow.org/v1",
    "mpijobs": "kubeflow.org/v2beta1",
    "storageclasses": "storage.k8s.io/v1",
    "csidrivers": "storage.k8s.io/v1",
    "csinodes": "storage.k8s.io/v1",
    "resourceslices": "resource.k8s.io/v1",
    "resourceclaims": "resource.k8s.io/v1",
    "resourceclaimtemplates": "resource.k8s.io/v1",
    "computedomains": "resource.nvidia.com/v1beta1",
    "devicetaintrules": "resource.k8s.io/v1beta2",
    "deviceclasses": "resource.k8s.io/v1",
    "provisioningrequests": "autoscaling.x-k8s.io/v1",
    "capacitybuffers": "autoscaling.x-k8s.io/v1beta1",
    "nodepools": "karpenter.sh/v1",
    "nodeclaims": "karpenter.sh/v1",
    "kwoknodeclasses": "karpenter.kwok.sh/v1alpha1",
    "clusterqueues": "kueue.x-k8s.io/v1beta2",
    "localqueues": "kueue.x-k8s.io/v1beta2",
    "resourceflavors": "kueue.x-k8s.io/v1beta2",
    "workloads": "kueue.x-k8s.io/v1beta2",
    "mutatingwebhookconfigurations": "admissionregistration.k8s.io/v1",
    "validatingwebhookconfigurations": "admissionregistration.k8s.io/v1",
}
_PLURALS = {
    "TrainingJob": "trainingjobs",
    "TrainingQueue": "trainingqueues",
    "GpuPool": "gpupools",
    "PriorityClass": "priorityclasses",
    "ResourceSlice": "resourceslices",
    "DeviceClass": "deviceclasses",
    "DeviceTaintRule": "devicetaintrules",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "Namespace": "namespaces",
    "Node": "nodes",
    "Pod": "pods",
    "ConfigMap": "configmaps",
    "Job": "jobs",
    "JobSet": "jobsets",
    "RayCluster": "rayclusters",
    "RayJob": "rayjobs",
    "PyTorchJob": "pytorchjobs",
    "MPIJob": "mpijobs",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "ResourceQuota": "resourcequotas",
    "Secret": "secrets",
    "LimitRange": "limitranges",
    "PersistentVolume": "persistentvolumes",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "StorageClass": "storageclasses",
    "CSIDriver": "csidrivers",
    "CSINode": "csinodes",
    "Event": "events",
    "CustomResourceDefinition": "customresourcedefinitions",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
    "NodeClaim": "nodeclaims",
    "NodePool": "nodepools",
    "KWOKNodeClass": "kwoknodeclasses",
    "ClusterQueue": "clusterqueues",
    "LocalQueue": "localqueues",
    "ResourceFlavor": "resourceflavors",
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}


class Kube:
    """One test's way to the API server.

    Args:
        kubeconfig: an administrator's.
        user: whom it speaks for; None: the administrator.
    """

    def __init__(self, kubeconfig: Path, *, user: str | None = None) -> None:
        self.kubeconfig = kubeconfig
        self._user = user
        self._api = Api(kubeconfig, user=user)

    def create(self, manifest: Json) -> Json:
        """Create an object."""
        metadata = manifest["metadata"]
        path = path_of(_PLURALS[manifest["kind"]], metadata.get("namespace"))
        return self._api.request("POST", path, manifest)

    def create_text(self, plural: str, namespace: str, text: bytes) -> Json:
        """Create an object from JSON that no encoder would write."""
        return self._api.request("POST", path_of(plural, namespace), text)

    def ensure(self, manifest: Json) -> None:
        """Create an object that another test may have created."""
        try:
            self.create(manifest)
        except ApiStatusError as error:
            if error.code != 409:
                raise

    def get(self, plural: str, name: str, namespace: str | None = None) -> Json:
        """Read one object."""
        return self._api.request("GET", path_of(plural, namespace, name))

    def exists(self, plural: str, name: str, namespace: str | None = None) -> bool:
        """Whether an object is there."""
        try:
            self.get(plural, name, namespace)
        except ApiStatusError as error:
            if error.code != 404:
                raise
            return False
        return True

    def list(self, plural: str, namespace: str | None = None, *, labels: str = "") -> list[Json]:
        """Read the objects of a kind."""
        query = f"?{urlencode({'labelSelector': labels})}" if labels else ""
        return self._api.request("GET", path_of(plural, namespace) + query)["items"]

    def patch(self, plural: str, name: str, body: Json, namespace: str | None = None) -> Json:
        """Merge-patch an object."""
        return self._api.request("PATCH", path_of(plural, namespace, name), body)

    def patch_status(self, plural: str, name: str, body: Json, namespace: str | None) -> Json:
        """Merge-patch an object's status."""
        path = f"{path_of(plural, namespace, name)}/status"
        return self._api.request("PATCH", path, {"status": body})

    def delete(
        self,
        plural: str,
        name: str,
        namespace: str | None = None,
        *,
        grace: int | None = None,
        orphan: bool = False,
    ) -> None:
        """Delete an object; gone already is fine. `orphan` leaves its children without an owner."""
        body: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if orphan:
            body["propagationPolicy"] = "Orphan"
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        try:
            self._api.request("DELETE", path_of(plural, namespace, name), body)
        except ApiStatusError as error:
            if error.code != 404:
                raise

    def evict(self, name: str, namespace: str) -> None:
        """Ask for the eviction of a pod, as a drain does.

        Raises:
            ApiStatusError: 429, if its disruption budget does not allow it.
        """
        body: Json = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        }
        self._api.request("POST", f"{path_of('pods', namespace, name)}/eviction", body, patience=0)

    def wait(
        self,
        plural: str,
        name: str,
        namespace: str | None,
        until: Callable[[Json | None], bool],
        *,
        seconds: float = HANG_SECONDS,
    ) -> Json | None:
        """Return the object once `until(object or None)` holds, watching it change."""
        field = f"metadata.name={name}"
        result = self.wait_all(
            plural,
            namespace,
            lambda objects: until(next(iter(objects), None)),
            fields=field,
            seconds=seconds,
        )
        return next(iter(result), None)

    def wait_all(
        self,
        plural: str,
        namespace: str | None,
        until: Callable[[list[Json]], bool],
        *,
        labels: str = "",
        fields: str = "",
        seconds: float = HANG_SECONDS,
    ) -> list[Json]:
        """Return the objects of a kind once `until(objects)` holds, watching them change.

        Raises:
            TimeoutError: it did not come to hold; shows the last objects seen.
        """
        deadline = time.monotonic() + seconds
        selector = {"labelSelector": labels, "fieldSelector": fields}
        query = {key: value for key, value in selector.items() if value}
        path = path_of(plural, namespace)
        while True:
            answer = self._api.request("GET", f"{path}?{urlencode(query)}")
            objects = {item["metadata"]["uid"]: item for item in answer["items"]}
            if until(list(objects.values())):
                return list(objects.values())
            left = deadline - time.monotonic()
            if left <= 0:
                shown = json.dumps([item.get("status") for item in objects.values()])[:3000]
                raise TimeoutError(f"{plural} {fields}{labels}: not within {seconds} s: {shown}")
            watch = {
                **query,
                "watch": "true",
                "resourceVersion": answer["metadata"]["resourceVersion"],
                "timeoutSeconds": str(max(1, min(WATCH_SECONDS, int(left)))),
            }
            for event in self._watch(f"{path}?{urlencode(watch)}"):
                if event["type"] == "ERROR":  # the version is gone: list again
                    break
                item = event["object"]
                if event["type"] == "DELETED":
                    objects.pop(item["metadata"]["uid"], None)
                else:
                    objects[item["metadata"]["uid"]] = item
                if until(list(objects.values())):
                    return list(objects.values())

    def version(self, plural: str, namespace: str | None = None) -> str:
        """The version of all objects of a kind now: `events_since` begins there."""
        answer = self._api.request("GET", f"{path_of(plural, namespace)}?limit=1")
        return answer["metadata"]["resourceVersion"]

    def events_since(
        self, version: str, plural: str, *, count: int, of: Callable[[str, Json], bool]
    ) -> list[tuple[str, Json]]:
        """The first events of a kind since then, in order, of those that `of(type, object)` takes.

        Types are ADDED, MODIFIED, DELETED.

        Raises:
            TimeoutError: there are not so many.
        """
        deadline = time.monotonic() + 120
        events: list[tuple[str, Json]] = []
        while time.monotonic() < deadline:
            query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": WATCH_SECONDS}
            for event in self._watch(f"{path_of(plural)}?{urlencode(query)}"):
                kind, item = event["type"], event["object"]
                assert kind != "ERROR", item
                version = item["metadata"]["resourceVersion"]
                if of(kind, item):
                    events.append((kind, item))
                if len(events) == count:
                    return events
        shown = [(kind, item["metadata"]["name"]) for kind, item in events]
        raise TimeoutError(f"{len(events)} of {count} events of {plural}: {shown}")

    def _watch(self, path: str) -> Iterable[Json]:
        with Api(self.kubeconfig, user=self._user) as api:
            try:
                for line in api.stream(path):
                    yield json.loads(line)
            except ApiStatusError as error:
                if error.code != TOO_MANY_REQUESTS:
                    raise
                time.sleep(1)  # it asks to be asked again: the caller lists anew

    def close(self) -> None:
        """Drop the connection."""
        self._api.close()


def path_of(plural: str, namespace: str | None = None, name: str | None = None) -> str:
    group = _GROUPS.get(plural)
    root = "/api/v1" if group is None else f"/apis/{group}"
    scope = f"/namespaces/{quote(namespace)}" if namespace else ""
    leaf = f"/{quote(name)}" if name else ""
    return f"{root}{scope}/{plural}{leaf}"


def phase_is(phase: str) -> Callable[[Json | None], bool]:
    """Whether a TrainingJob's phase is this one."""
    return lambda item: item is not None and item.get("status", {}).get("phase") == phase


def reason_is(reason: str) -> Callable[[Json | None], bool]:
    """Whether a TrainingJob's reason is this one."""
    return lambda item: item is not None and item.get("status", {}).get("reason") == reason


def left_because(reason: str) -> Callable[[Json | None], bool]:
    """Whether a TrainingJob has no places any more, for this reason."""
    return lambda item: (
        reason_is(reason)(item) and "assignment" not in (item or {}).get("status", {})
    )


def generation_is(generation: int) -> Callable[[Json | None], bool]:
    """Whether a TrainingJob's gang is of this generation."""
    return lambda item: (item or {}).get("status", {}).get("generation") == generation


def ready(truth: str, reason: str) -> Callable[[Json | None], bool]:
    """Whether an object's newest spec was judged like this."""

    def judged(document: Json | None) -> bool:
        status = (document or {}).get("status", {})
        conditions = {entry["type"]: entry for entry in status.get("conditions") or ()}
        entry = conditions.get("Ready", {})
        observed = status.get("observedGeneration") == (document or {})["metadata"]["generation"]
        return observed and (entry.get("status"), entry.get("reason")) == (truth, reason)

    return judged
