"""Build the documents that are kept of a job: its object without secrets, and its events. Pure.

A document has the format of `kubectl get trainingjob,events -o json`. Commands that read such a
file can read a document: `drumline report --file`, `drumline usage --file`. Values of environment
variables may be secrets and are not kept. Annotations of other tools are not kept either, because
kubectl stores a copy of the whole spec in one. For an oversized spec, only the plain fields are
kept.
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
# 64 jobs of this size take 8 MiB. Ordinary jobs take a few KiB.
MOST_PACKED_BYTES: Final = 128 * 1024
"""Maximum compressed size per job. Tenants may fill their objects, and all of them are in
memory."""
_OUR_PREFIX: Final = "drumline.dev/"
# An allow-list: a field that a later API server adds is not kept by accident.
_KEPT_METADATA: Final = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "generation",
    "labels",
)
# UID and name become parts of a path, so they must not contain a slash.
_UID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
_NAME: Final = re.compile(r"[0-9a-z]([0-9a-z.-]{0,251}[0-9a-z])?")


class ArchivableJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """View of a TrainingJob in the archiver's informer.

    Attributes:
        finished_at: time at which it succeeded or failed permanently (RFC 3339). Empty before.
        phase: status.phase, or empty.
        generation: status.generation, or 0.
        incident: number of its newest incident, such as `3.0`. Empty: none.
        news: changes with the fields that a reader would miss: phase, reason, generation,
            incidents.
        packed: kept part of the object: JSON, compressed by zlib.
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
        """Return the kept part of the object."""
        return cast("Json", msgspec.json.decode(zlib.decompress(self.packed)))


class _ArchivableObject(StoredTrainingJob, frozen=True):
    metadata: Metadata


def archivable_job(raw: bytes | msgspec.Raw) -> ArchivableJob:
    """Return the view of one TrainingJob.

    Raises:
        Undecodable: the object is not a TrainingJob.
    """
    try:
        # The object is decoded twice: as plain JSON to keep it, and as a struct for the fields of a
        # view.
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
        # Tenants write the spec. The status stays whole, because reports need it.
        if len(packed) > MOST_PACKED_BYTES:
            packed = _packed(kept | {"spec": _scalars(kept["spec"])})
    except (msgspec.MsgspecError, RecursionError) as error:
        # A deeply nested object raises RecursionError in the decoder or in `_without_values`.
        raise Undecodable(f"{type(error).__name__}: {error}") from None
    metadata, status, incident = job.metadata, job.status, _newest_incident(job.status)
    # A change of any of these is written at once. Other fields wait for the refresh.
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
    """Return the document of a job.

    Args:
        job: `ArchivableJob.unpacked`.
        events: events about it, as the API server stores them.
        archived_at: current time, in seconds since the epoch.
        deleted_at: time of deletion, if the job had not ended. None: not deleted.
    """
    stamps = {"archivedAt": _rfc3339(archived_at)}
    if deleted_at is not None:
        stamps["deletedAt"] = _rfc3339(deleted_at)
    # A List, so that `kubectl` and the report commands read the file without a special case.
    whole = {"apiVersion": "v1", "kind": "List", "archive": stamps, "items": [job, *events]}
    return msgspec.json.encode(whole)


class _Stamps(msgspec.Struct, frozen=True, rename="camel"):
    archived_at: str
    deleted_at: str | None = None


class ArchivedJob(msgspec.Struct, frozen=True):
    """A document of the archive.

    Attributes:
        archive: times of the write and of the deletion of the object.
        items: the job, and the events about it.
    """

    archive: _Stamps
    items: list[msgspec.Raw]


_decode_archived: Final = msgspec.json.Decoder(ArchivedJob).decode


def archived_job(raw: bytes) -> ArchivedJob:
    """Return a document of the archive.

    Raises:
        Undecodable: the data is not a document.
    """
    try:
        read = _decode_archived(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Undecodable(f"not a document of the archive: {error}") from None
    if not read.items:
        raise Undecodable("not a document of the archive: it contains no job")
    return read


def with_deletion(raw: bytes, *, deleted_at: float) -> tuple[Mapping[str, Any], bytes]:
    """Return the metadata of a document's job, and the document marked as deleted.

    Raises:
        Undecodable: the data is not a document.
    """
    # The document is built again, because its stamps are not a part of the items.
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
    # The numbers become parts of paths, so they are bounded.
    return number if number is not None and 0 <= number < 1 << 31 else 0


def _packed(kept: Json) -> bytes:
    # Level 1: most of the ratio for a fraction of the time, because each event packs once.
    return zlib.compress(msgspec.json.encode(kept), level=1)


def _scalars(spec: object) -> Json:
    """Return the fields of a spec that have one short value, for rows."""
    return {
        name: value
        for name, value in _mapping(spec).items()
        # A bool is an int, so it is kept too. Lists and maps are what makes a spec large.
        if isinstance(value, int | float | bool) or (isinstance(value, str) and len(value) <= 512)
    }


def _kept_metadata(metadata: Json) -> Json:
    kept = {name: metadata[name] for name in _KEPT_METADATA if name in metadata}
    annotations = _mapping(metadata.get("annotations"))
    ours = {name: value for name, value in annotations.items() if name.startswith(_OUR_PREFIX)}
    return kept | ({"annotations": ours} if ours else {})


def _without_values(value: object) -> object:
    """Return the value without the values in lists called `env`."""
    if isinstance(value, dict):
        fields = cast("Json", value)
        return {
            # Any list named `env`, at any depth: containers, init containers and sidecars have one
            # each.
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
    # `valueFrom` only names a Secret or a field, so it is kept.
    return [each | {"value": NOT_KEPT} if "value" in each else each for each in variables]


def _checked(value: str, field: str, pattern: re.Pattern[str]) -> str:
    if not pattern.fullmatch(value):
        raise Undecodable(f"metadata.{field} is missing or invalid")
    return value


def _mapping(value: object) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def _rfc3339(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
