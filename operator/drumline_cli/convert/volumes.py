"""Volumes, mounts and variables of a pod as a template has them."""

from __future__ import annotations

from typing import Final

from drumline_api.base import TOKEN_SECRET_SUFFIX
from drumline_api.variables import RESERVED_ENV
from drumline_api.volumes import RESERVED_MOUNTS
from drumline_cli.convert.fields import Fields
from drumline_cli.convert.model import Json

_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - a mount of the pods, not a file of this program
# Mounts here would hide folders that the operator or the kubelet needs.
_ABOVE_RESERVED: Final = ("/dev", "/run", "/var", "/var/run", "/etc", "")
_SOURCES: Final = {
    "hostPath": "only the administrator can mount folders of the node: podProfile.volumes of the"
    " GpuPool (docs/pools.md)",
    "nfs": "create a PersistentVolume and a claim for it, and mount the claim",
    "downwardAPI": "pods read their position from the launcher's variables",
    "projected": "use a separate volume for the Secret or ConfigMap",
    "image": "add the files to the image",
}
_OURS: Final = ("persistentVolumeClaim", "configMap", "secret", "emptyDir", "csi", "ephemeral")


def env_of(container: Fields, *, to: str) -> list[Json]:
    """Convert a container's variables. Note and omit those that Drumline or the pool sets."""
    variables: dict[str, Json] = {}
    for entry in container.each("env"):
        name = entry.text("name") or ""
        # A template must not redirect the launcher or the GPU runtime.
        if name.startswith("DRUMLINE_") or name in RESERVED_ENV:
            entry.forget()
            entry.notes.left_out(
                entry.path,
                f"Drumline or the pool sets {name}, so a template must not set it",
            )
            continue
        source = entry.below("valueFrom")
        variable: Json = {"name": name}
        for kind in ("secretKeyRef", "configMapKeyRef"):
            if source.has(kind):
                variable["valueFrom"] = {kind: _key(source.below(kind))}
        if source.names() and "valueFrom" not in variable:
            continue  # the rest names it: fieldRef and resourceFieldRef
        if "valueFrom" not in variable:
            variable["value"] = entry.text("value") or ""
        # A job token gives rights at the agents, so no template may read it.
        if _is_token(variable):
            entry.notes.left_out(entry.path, "Secrets with the tokens of jobs are not allowed")
            continue
        variables[name] = variable  # of two of a name the later counts, as in a pod
    if variables:
        container.notes.carried(container.at("env"), f"{to}.env")
    return list(variables.values())


def env_from(container: Fields, *, to: str) -> list[Json]:
    """Whole Secrets and ConfigMaps as variables; a template takes them with a prefix only."""
    sources: list[Json] = []
    for entry in container.each("envFrom"):
        prefix = entry.text("prefix")
        reserved = ("DRUMLINE_", *RESERVED_ENV)
        # Without a prefix, a key such as LD_PRELOAD could change the runtime.
        if prefix is None or any(
            name.startswith(prefix) or prefix.startswith("DRUMLINE_") for name in reserved
        ):
            for kind in ("secretRef", "configMapRef"):
                entry.raw(kind)
            entry.notes.left_out(
                entry.path,
                "a key could set a variable of the GPU runtime, so envFrom needs a prefix; list"
                " the keys in template.env",
            )
            continue
        source: Json = {"prefix": prefix}
        for kind in ("secretRef", "configMapRef"):
            if entry.has(kind):
                # `optional` is kept only if it is true, because false is the default.
                reference = entry.below(kind)
                source[kind] = _without_none(
                    name=reference.text("name"), optional=reference.flag("optional") or None
                )
        sources.append(source)
    if sources:
        container.notes.carried(container.at("envFrom"), f"{to}.envFrom")
    return sources


def volumes_of(pod: Fields) -> list[Json]:
    """Convert the volumes that a template may have. Note and omit all others."""
    volumes: list[Json] = []
    for entry in pod.each("volumes"):
        name = entry.text("name") or ""
        # The first source counts. The API server allows one per volume.
        kinds = [kind for kind in _OURS if entry.has(kind) or kind in _given(entry)]
        for kind, remedy in _SOURCES.items():
            entry.leave_out(kind, remedy)
        if not kinds or name.startswith("drumline-"):
            continue
        source = _source(entry, kinds[0])
        if str(source.get("name", "")).endswith(TOKEN_SECRET_SUFFIX):
            entry.notes.left_out(entry.path, "Secrets with the tokens of jobs are not allowed")
            continue
        volumes.append({"name": name, kinds[0]: source})
    if volumes:
        pod.notes.carried(pod.at("volumes"), "spec.template.volumes")
    return volumes


def mounts_of(container: Fields, *, volumes: list[Json], to: str) -> list[Json]:
    """Convert mounts of these volumes. Omit folders of the operator and the kubelet.

    Args:
        container: the container.
        volumes: converted volumes of the Pod.
        to: path of the result, for notes.
    """
    names = {volume["name"] for volume in volumes}
    mounts: list[Json] = []
    for entry in container.each("volumeMounts"):
        name, folder = entry.text("name") or "", entry.text("mountPath") or ""
        mount = _without_none(
            name=name,
            mountPath=folder,
            subPath=entry.text("subPath"),
            readOnly=entry.flag("readOnly") or None,
        )
        # The operator mounts shared memory itself, because NCCL needs it.
        if folder.rstrip("/") == _SHARED_MEMORY:
            entry.notes.left_out(
                entry.path, "shared memory is always mounted, with the size of the memory limit"
            )
        elif name not in names:
            entry.notes.left_out(entry.path, f"its volume {name} was left out")
        elif _is_reserved(folder):
            entry.notes.left_out(
                entry.path,
                f"{folder} is reserved for the operator or the kubelet; choose another mountPath",
            )
        else:
            mounts.append(mount)
    if mounts:
        container.notes.carried(container.at("volumeMounts"), f"{to}.volumeMounts")
    return mounts


def without_shared_memory(volumes: list[Json], mounts: list[Json]) -> list[Json]:
    """Return the volumes without scratch space that nothing mounts."""
    # A memory volume for /dev/shm has no mount left, so it is dropped.
    mounted = {mount["name"] for mount in mounts}
    return [volume for volume in volumes if "emptyDir" not in volume or volume["name"] in mounted]


def _given(entry: Fields) -> frozenset[str]:
    # The API writes an empty source as an empty mapping.
    """Return sources that are given although empty, as `emptyDir: {}`."""
    return frozenset(kind for kind in _OURS if entry.is_given(kind))


def _source(entry: Fields, kind: str) -> Json:
    source = entry.below(kind)
    match kind:
        case "persistentVolumeClaim":
            return _without_none(
                claimName=source.text("claimName"), readOnly=source.flag("readOnly") or None
            )
        case "configMap":
            return _without_none(name=source.text("name"))
        case "secret":
            return _without_none(name=source.text("secretName"))
        case "emptyDir":
            return _without_none(medium=source.text("medium"), sizeLimit=source.text("sizeLimit"))
        case "ephemeral":
            return {"volumeClaimTemplate": {"spec": _claim_spec(source)}}
        case _:
            reference = source.below("nodePublishSecretRef")
            secret = reference.text("name")
            return _without_none(
                driver=source.text("driver"),
                fsType=source.text("fsType"),
                readOnly=source.flag("readOnly") or None,
                volumeAttributes=source.raw("volumeAttributes"),
                nodePublishSecretRef={"name": secret} if secret else None,
            )


def _claim_spec(source: Fields) -> Json:
    spec = source.below("volumeClaimTemplate").below("spec")
    requests = spec.below("resources").below("requests")
    return _without_none(
        accessModes=spec.texts("accessModes") or None,
        storageClassName=spec.text("storageClassName"),
        resources={"requests": _without_none(storage=requests.text("storage"))},
    )


def _key(reference: Fields) -> Json:
    return _without_none(
        name=reference.text("name"),
        key=reference.text("key"),
        optional=reference.flag("optional") or None,
    )


def _is_token(variable: Json) -> bool:
    secret = variable.get("valueFrom", {}).get("secretKeyRef", {})
    return str(secret.get("name", "")).endswith(TOKEN_SECRET_SUFFIX)


def _is_reserved(folder: str) -> bool:
    bare = folder.rstrip("/")
    return bare in _ABOVE_RESERVED or any(
        bare == reserved or bare.startswith(f"{reserved}/") for reserved in RESERVED_MOUNTS
    )


def _without_none(**fields: object) -> Json:
    return {name: value for name, value in fields.items() if value is not None}
