"""Saved objects as manifests for a cluster that does not have them.

A restored job is another object with another uid, and the folder of its checkpoints is named after
the uid where the spec names none. So the folder is written into the spec: the new job goes on where
the old one was. Jobs that had ended are left out, as they would run again.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from drumline.lifecycle.manifests.trainer_config import checkpoint_path
from drumline_api.base import GROUP
from drumline_cli.jobs.clone import SHARED_CODE

Json = dict[str, Any]

ORDER: Final = ("GpuPool", "TrainingQueue", "ConfigMap", "TrainingJob")
"""Order of the kinds: dependencies come before jobs."""
_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A manifest to apply.

    Attributes:
        manifest: without status and what the old cluster added.
        note: what is to be known about it; empty: nothing.
    """

    manifest: Json
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """An object that is not restored, and why."""

    reason: str


def restored(raw: Mapping[str, Any]) -> Restored | LeftOut:
    """Return the manifest that restores a saved object, or the reason to omit it.

    Args:
        raw: object as the API server printed it.
    """
    api, kind = str(raw.get("apiVersion", "")), raw.get("kind")
    if (api, kind) == ("v1", "ConfigMap"):
        return _code(raw)
    if not api.startswith(f"{GROUP}/") or kind not in ORDER:
        return LeftOut(reason="not an object of Drumline; apply it unchanged if jobs need it")
    if kind == "TrainingJob":
        return _job(raw)
    manifest = _manifest(raw, "spec")
    # The API server accepts an override only from the user who grants it.
    left_out = _fields(manifest, "spec").pop("overrides", None)
    note = "its overrides are left out; grant them again" if left_out else ""
    return Restored(manifest=manifest, note=note)


def _job(raw: Mapping[str, Any]) -> Restored | LeftOut:
    status = _fields(raw, "status")
    if status.get("finishedAt"):
        return LeftOut(reason=f"it had ended ({status.get('phase', 'ended')}) and would run again")
    manifest = _manifest(raw, "spec")
    checkpoint = _fields(_fields(manifest, "spec"), "checkpoint")
    metadata = _fields(raw, "metadata")
    user = _fields(manifest, "spec").get("user")
    charged = f"; with userPolicy, only {user} or a trusted user may apply it" if user else ""
    if not checkpoint:
        note = "it has no checkpoints and starts from the beginning"
        return Restored(manifest=manifest, note=f"{note}{charged}")
    path = checkpoint_path(
        str(checkpoint.get("path") or ""),
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
    )
    manifest["spec"]["checkpoint"] = {**checkpoint, "path": path}
    if "bucket" in checkpoint:
        note = f"it continues from {checkpoint['bucket']}/{path}"
    else:
        note = f"it continues from folder {path} of claim {checkpoint.get('claimName', '')}"
    return Restored(manifest=manifest, note=f"{note}{charged}")


def _code(raw: Mapping[str, Any]) -> Restored | LeftOut:
    if not str(_fields(raw, "metadata").get("name", "")).startswith(f"{SHARED_CODE}-"):
        return LeftOut(reason="not the code of a job; apply it unchanged if jobs need it")
    manifest = _manifest(raw, "data", "binaryData", "immutable")
    note = "code of jobs; it stays when the jobs are deleted, because it has no owner"
    return Restored(manifest=manifest, note=note)


def _manifest(raw: Mapping[str, Any], *parts: str) -> Json:
    """Names, labels and annotations, and these parts as they were."""
    metadata = _fields(raw, "metadata")
    kept = {name: metadata[name] for name in ("name", "namespace", "labels") if name in metadata}
    annotations = {
        name: text for name, text in _fields(metadata, "annotations").items() if name != _APPLIED
    }
    if annotations:
        kept["annotations"] = annotations
    named = {"apiVersion": raw["apiVersion"], "kind": raw["kind"], "metadata": kept}
    return copy.deepcopy({**named, **{part: raw[part] for part in parts if part in raw}})


def _fields(raw: Mapping[str, Any], name: str) -> Json:
    value: object = raw.get(name)
    return cast("Json", value) if isinstance(value, dict) else {}
