"""Additions of a pool's administrator to its pods, the last step of a manifest.

A job cannot undo them. Annotations of the profile override those of the job, and its volumes have
names that no job can use.
"""

from __future__ import annotations

from typing import Any, Final

from drumline_api.podprofile import PodProfile, ProfileSidecar, ProfileVolume
from drumline_api.volumes import VolumeMount

Json = dict[str, Any]

_VOLUME_PREFIX: Final = "drumline-pool-"
"""Names of a template's volumes cannot start with `drumline-`."""


def with_profile(pod: Json, profile: PodProfile | None) -> Json:
    """Return the pod with the additions of its pool. O(size of the profile).

    Args:
        pod: a whole manifest whose first container trains.
        profile: profile of the pool that the job was admitted to.
    """
    if profile is None:
        return pod
    metadata: Json = {
        **pod["metadata"],
        "annotations": {**pod["metadata"]["annotations"], **(profile.annotations or {})},
        "labels": _labels(pod["metadata"]["labels"], profile.labels or {}),
    }
    return {**pod, "metadata": metadata, "spec": _spec(pod["spec"], profile)}


def _labels(own: dict[str, str], added: dict[str, str]) -> dict[str, str]:
    """Add labels, except Drumline's own: the operator finds its pods by them."""
    return {**own, **{key: value for key, value in added.items() if not _is_ours(key)}}


def _is_ours(key: str) -> bool:
    domain = key.partition("/")[0]
    return domain == "drumline.dev" or domain.endswith(".drumline.dev")


def _spec(spec: Json, profile: PodProfile) -> Json:
    added: Json = {
        "serviceAccountName": profile.service_account_name,
        "runtimeClassName": profile.runtime_class_name,
        "securityContext": {**spec["securityContext"], **_user(profile.run_as_user)},
        "containers": [_training(spec["containers"][0], profile), *spec["containers"][1:]],
        "initContainers": [
            *map(_sidecar, profile.sidecars or []),  # before what waits for the whole gang
            *spec.get("initContainers", []),
        ],
        "volumes": [*spec["volumes"], *map(_volume, profile.volumes or [])],
        "imagePullSecrets": _distinct(
            [
                *spec.get("imagePullSecrets", []),
                *({"name": name} for name in profile.image_pull_secrets or []),
            ]
        ),
    }
    return {**spec, **{key: value for key, value in added.items() if value}}


def _training(container: Json, profile: PodProfile) -> Json:
    # The job's own variables win: they may be needed by its program.
    named = {variable["name"] for variable in container["env"]}
    added = [each.as_json() for each in profile.env or [] if each.name not in named]
    security = container["securityContext"]
    if profile.capabilities:
        capabilities = {**security["capabilities"], "add": list(profile.capabilities)}
        security = {**security, "capabilities": capabilities}
    return {
        **container,
        # First, so that `$(NAME)` of a job's own variables can refer to them.
        "env": [*added, *container["env"]],
        "volumeMounts": [*container["volumeMounts"], *_mounts(profile.volume_mounts)],
        "securityContext": security,
    }


def _sidecar(sidecar: ProfileSidecar) -> Json:
    security: Json = dict(_user(sidecar.run_as_user))
    if sidecar.run_as_user == 0:
        security["runAsGroup"] = 0
    if sidecar.capabilities:
        security["capabilities"] = {"add": list(sidecar.capabilities)}
    if sidecar.privileged:
        security["privileged"] = True
    optional = {"command": sidecar.command, "args": sidecar.args}
    return {
        "name": sidecar.name,
        "image": sidecar.image,
        "imagePullPolicy": "IfNotPresent",
        "restartPolicy": "Always",
        **{key: list(value) for key, value in optional.items() if value is not None},
        "env": [each.as_json() for each in sidecar.env or []],
        "securityContext": security,
        "volumeMounts": _mounts(sidecar.volume_mounts),
    }


def _user(user: int | None) -> Json:
    """Return the user of a security context. With `runAsNonRoot` the kubelet refuses root."""
    return {} if user is None else {"runAsUser": user, "runAsNonRoot": user != 0}


def _volume(volume: ProfileVolume) -> Json:
    return {**volume.as_json(), "name": f"{_VOLUME_PREFIX}{volume.name}"}


def _mounts(mounts: list[VolumeMount] | None) -> list[Json]:
    return [{**mount.as_json(), "name": f"{_VOLUME_PREFIX}{mount.name}"} for mount in mounts or []]


def _distinct(secrets: list[Json]) -> list[Json]:
    return list({secret["name"]: secret for secret in secrets}.values())
