"""Create a new job from an existing one: the same spec and code, with the given changes."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from drumline.lifecycle.manifests.trainer_config import checkpoint_path
from drumline_api.base import GROUP
from drumline_cli.errors import BadInput

Json = dict[str, Any]

SHARED_CODE: Final = "drumline-code"
"""Name prefix of ConfigMaps that are deleted with their last owner."""
LABEL_SWEEP: Final = f"{GROUP}/sweep"
PARAMETERS: Final = f"{GROUP}/parameters"
"""Annotation of a sweep's job."""
# The user wants a running copy, even of a stopped job.
_NOT_CLONED: Final = ("suspend",)
_KEPT: Final = frozenset((LABEL_SWEEP, PARAMETERS))
"""Labels and annotations of a retried job."""
MAX_DEPTH: Final = 8
"""Maximum depth of a path of --set. The spec is not deeper."""


def cloned(job: Json, *, name: str, changes: Sequence[str], command: Sequence[str]) -> Json:
    """Return the manifest of the new job.

    Args:
        job: the existing job, as the API server prints it.
        name: name of the new job.
        changes: `path=value`, below spec. The value is JSON or text. `null` removes the field.
        command: instead of the template's command and arguments; empty: these stay.

    Raises:
        BadInput: a change has the wrong form, or both jobs would write to one checkpoint.
    """
    # The original must stay as it is, so the spec is copied deeply.
    spec: Json = copy.deepcopy(job["spec"])
    for field in _NOT_CLONED:
        spec.pop(field, None)
    for change in changes:
        _set(spec, change)
    if command:
        template: object = spec.get("template")
        if not isinstance(template, dict):
            raise BadInput("this job has no template, so it has no command; change it with --set")
        template = cast("Json", template)
        template["command"] = list(command)
        # Arguments belong to the old command.
        template.pop("args", None)
    # Two jobs in one checkpoint folder would destroy each other's state.
    _check_checkpoint(job["spec"], spec)
    return {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "metadata": {"name": name, "namespace": job["metadata"]["namespace"]},
        "spec": spec,
    }


def retried(job: Json, *, name: str) -> Json:
    """Return the manifest of a job that continues where a failed one ended.

    It has the failed job's checkpoint folder, and its place in a sweep.

    Args:
        job: the failed job, as the API server prints it.
        name: name of the new job.
    """
    metadata: Json = job["metadata"]
    spec: Json = copy.deepcopy(job["spec"])
    for field in _NOT_CLONED:
        spec.pop(field, None)
    # The folder of a job without a path is named after its uid. The new uid differs.
    if checkpoint := _fields(spec, "checkpoint"):
        path = checkpoint_path(
            str(checkpoint.get("path") or ""),
            name=str(metadata["name"]),
            uid=str(metadata.get("uid", "")),
        )
        named = str(metadata["name"])
        # A retried job stays in its sweep.
        spec["checkpoint"] = {**checkpoint, "path": path, "continueFrom": named}
    kept = {
        field: {key: text for key, text in _fields(metadata, field).items() if key in _KEPT}
        for field in ("labels", "annotations")
    }
    return {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            **{field: texts for field, texts in kept.items() if texts},
        },
        "spec": spec,
    }


def shared_parts(manifest: Mapping[str, Any]) -> list[str]:
    """Return the ConfigMaps with the code that the job owns, without those of other owners."""
    code = _fields(_fields(manifest["spec"], "template"), "code")
    # Code with another prefix has no owner, so nothing has to be shared.
    names = cast("list[str]", code.get("configMaps") or [])
    return [name for name in names if name.startswith(f"{SHARED_CODE}-")]


def _fields(raw: Mapping[str, Any], name: str) -> Json:
    return cast("Json", raw.get(name) or {})


def check_changes(changes: Sequence[str]) -> None:
    """Refuse changes that are not of their form.

    Raises:
        BadInput: one is not `path=value`.
    """
    for change in changes:
        _parted(change)


def _parted(change: str) -> tuple[list[str], str, str]:
    """Return the fields above, the field, and the text of its value."""
    # `spec.` is optional, because all fields are below it.
    path, equals, text = change.partition("=")
    *above, field = path.removeprefix("spec.").split(".")
    if not equals or not all((*above, field)) or len(above) > MAX_DEPTH:
        raise BadInput(f"invalid --set {change}: want path=value, such as template.image=train:2")
    return above, field, text


def _set(spec: Json, change: str) -> None:
    above, field, text = _parted(change)
    place = spec
    # Intermediate fields may be absent, since most of the spec is optional.
    for step in above:
        below: object = place.setdefault(step, {})
        if not isinstance(below, dict):
            raise BadInput(f"--set {change}: {step} has no fields; set it as a whole, as JSON")
        place = cast("Json", below)
    value = _value(text)
    if value is None:
        place.pop(field, None)
    else:
        place[field] = value


def _value(text: str) -> Any:
    try:
        # Text that is not JSON is taken as it is, so users need no quotes.
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _check_checkpoint(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    before, after = _fields(old, "checkpoint"), _fields(new, "checkpoint")
    place = ("claimName", "bucket", "path")
    same = all(after.get(field) == before.get(field) for field in place)
    if after.get("path") and same:
        raise BadInput(
            f"both jobs would write their checkpoints to {after['path']}; choose another folder"
            " with --set checkpoint.path=FOLDER, or use --set checkpoint.path=null for a new one"
        )
