"""What is kept of a job: its object without secrets, and the events about it. Pure.

A document is what `kubectl get trainingjob,events -o json` would have printed, so every command
that reads such a file reads a document: `drumline report --file`, `drumline usage --file`. Values
of environment variables may be secrets and are not kept, nor are annotations of others: kubectl
keeps a copy of the whole spec in one. Of a spec that is larger than any that people write only the
plain fields are kept.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

import msgspec

from drumline.kube.codec import Undecodable
from drumline_api.objects.base import Metadata
from drumline_api.objects.custom import StoredTrainingJob, StoredTrainingJobStatus

Json = dict[str, Any]
NOT_KEPT: Final = "(not archived)"
MOST_PACKED_BYTES: Final = 128 * 1024
"""Of a job, compressed: tenants may fill their objects, and all of them are held at a time."""
_OUR_PREFIX: Final = "drumline.dev/"
_KEPT_METADATA: Final = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "generation",
    "labels",
)
_UID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
_NAME: Final = re.compile(r"[0-9a-z]([0-9a-z.-]{0,251}[0-9a-z])?")


class ArchivableJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A TrainingJob as the archive sees it: the view of its informer.

    Attributes:
        finished_at: when it succeeded or failed for good (RFC 3339); empty before.
        phase: status.phase; empty before there is one.
        generation: status.generation; 0 before there is one.
        incident: number of its newest incident, such as `3.0`; empty: it had none.
        news: changes with what a reader would miss: phase, reason, generation, incidents.
        packed: what is kept of the object: JSON, compressed by zlib.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    finished_at: str
    phase: str
    generation: int
    incident: str
    news: tuple[str, ...]
    packed: bytes

    def unpacked(self) -> Json:
        """What is kept of the object."""
        return cast("Json", msgspec.json.decode(zlib.decompress(self.packed)))


class _ArchivableObject(StoredTrainingJob, frozen=True):
    metadata: Metadata


def archivable_job(raw: bytes | msgspec.Raw) -> ArchivableJob:
    """The view of one TrainingJob.

    Raises:
        Undecodable: it is not one.
    """
    try:
        whole = _mapping(msgspec.json.decode(raw))
        job = msgspec.convert(whole, _ArchivableObject)
        kept = {
            "apiVersion": whole.get("apiVersion"),
            "kind": whole.get("kind"),
            "metadata": _kept_metadata(_mapping(whole.get("metadata"))),
            "spec": _without_values(whole.get("spec")),
            "status": whole.get("status"),
        }
        packed = _packed(kept)
        if len(packed) > MOST_PACKED_BYTES:
            packed = _packed(kept | {"spec": _scalars(kept["spec"])})
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Undecodable(f"{type(error).__name__}: {error}") from None
    metadata, status, incident = job.metadata, job.status, _newest_incident(job.status)
    news = (status.phase, status.reason, status.generation, status.restarts)
    return ArchivableJob(
        namespace=_checked(metadata.namespace, "namespace", _NAME),
        name=_checked(metadata.name, "name", _NAME),
        uid=_checked(metadata.uid, "uid", _UID),
        resource_version=metadata.resource_version,
        finished_at=status.finished_at or "",
        phase=status.phase or "",
        generation=_count(status.generation),
        incident=incident,
        news=(*map(str, news), incident),
        packed=packed,
    )


def document(
    job: Json, *, events: Sequence[Json], archived_at: float, deleted_at: float | None
) -> bytes:
    """The document of a job.

    Args:
        job: `ArchivableJob.unpacked`.
        events: about it, as the API server has them.
        archived_at: now, in seconds since the epoch.
        deleted_at: when the object was deleted though the job had not ended; None: it was not.
    """
    stamps = {"archivedAt": _rfc3339(archived_at)}
    if deleted_at is not None:
        stamps["deletedAt"] = _rfc3339(deleted_at)
    whole = {"apiVersion": "v1", "kind": "List", "archive": stamps, "items": [job, *events]}
    return msgspec.json.encode(whole)


class _Stamps(msgspec.Struct, frozen=True, rename="camel"):
    archived_at: str
    deleted_at: str | None = None


class ArchivedJob(msgspec.Struct, frozen=True):
    """A document as it is read.

    Attributes:
        archive: when it was written, and when the object was deleted.
        items: the job, and the events about it.
    """

    archive: _Stamps
    items: list[msgspec.Raw]


_decode_archived: Final = msgspec.json.Decoder(ArchivedJob).decode


def archived_job(raw: bytes) -> ArchivedJob:
    """A document of the archive.

    Raises:
        Undecodable: it is not one.
    """
    try:
        read = _decode_archived(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Undecodable(f"not a document of the archive: {error}") from None
    if not read.items:
        raise Undecodable("not a document of the archive: it contains no job")
    return read


def with_deletion(raw: bytes, *, deleted_at: float) -> tuple[Mapping[str, Any], bytes]:
    """The metadata of the job of a document, and the document of the same job, deleted.

    Raises:
        Undecodable: it is no document.
    """
    items = [cast("Json", msgspec.json.decode(item)) for item in archived_job(raw).items]
    job, events = items[0], items[1:]
    body = document(job, events=events, archived_at=deleted_at, deleted_at=deleted_at)
    return _mapping(job.get("metadata")), body


def _newest_incident(status: StoredTrainingJobStatus) -> str:
    incident = status.last_incident
    if incident is None:
        return ""
    return f"{_count(incident.generation)}.{_count(incident.attempt)}"


def _count(number: int | None) -> int:
    return number if number is not None and 0 <= number < 1 << 31 else 0


def _packed(kept: Json) -> bytes:
    return zlib.compress(msgspec.json.encode(kept), level=1)


def _scalars(spec: object) -> Json:
    """What rows are made of: the fields of a spec that are one short value."""
    return {
        name: value
        for name, value in _mapping(spec).items()
        if isinstance(value, int | float | bool) or (isinstance(value, str) and len(value) <= 512)
    }


def _kept_metadata(metadata: Json) -> Json:
    kept = {name: metadata[name] for name in _KEPT_METADATA if name in metadata}
    annotations = _mapping(metadata.get("annotations"))
    ours = {name: value for name, value in annotations.items() if name.startswith(_OUR_PREFIX)}
    return kept | ({"annotations": ours} if ours else {})


def _without_values(value: object) -> object:
    """The same, with no values in lists called `env`."""
    if isinstance(value, dict):
        fields = cast("Json", value)
        return {
            name: _without_env_values(each) if name == "env" else _without_values(each)
            for name, each in fields.items()
        }
    if isinstance(value, list):
        return [_without_values(each) for each in cast("list[object]", value)]
    return value


def _without_env_values(env: object) -> object:
    if not isinstance(env, list):
        return NOT_KEPT
    variables = [cast("Json", each) for each in cast("list[object]", env) if isinstance(each, dict)]
    return [each | {"value": NOT_KEPT} if "value" in each else each for each in variables]


def _checked(value: str, field: str, pattern: re.Pattern[str]) -> str:
    if not pattern.fullmatch(value):
        raise Undecodable(f"metadata.{field} is missing or invalid")
    return value


def _mapping(value: object) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def _rfc3339(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
