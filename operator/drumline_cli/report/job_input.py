"""Define the input of a report: one TrainingJob, its events, and the time of the read.

Objects come as decoded JSON from `from_cluster` or `from_files`, and become checked values here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from drumline_api.load import ApiError, parse
from drumline_api.objects.base import ObjectMetadata
from drumline_api.objects.builtin import EventSeries, EventSubject, Identity, StoredEvent
from drumline_api.trainingjob import TrainingJob
from drumline_cli.formatting import moment
from drumline_cli.manifests import Json
from drumline_cli.report.model import EventRow
from drumline_contract import plain

T = TypeVar("T")
_DEFAULT_NAMESPACE: Final = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInput:
    """One job as it was read."""

    namespace: str
    name: str
    uid: str
    created_at: float | None
    job: TrainingJob
    events: tuple[EventRow, ...]
    """Newest first."""
    as_of: float
    """When the job was read, in seconds since the epoch."""
    remarks: tuple[str, ...] = ()
    """Sentences about objects that could not be read."""


def job_input(
    raw: Json, *, events: Iterable[Json], as_of: float, remarks: tuple[str, ...] = ()
) -> JobInput:
    """Return the checked input of a report. Events about other objects are left out.

    Args:
        raw: the TrainingJob.
        events: Kubernetes events.
        as_of: Unix time at which they were read.
        remarks: remarks about the source.

    Raises:
        ApiError: a field of the job or of an event is not valid. The message names the field.
    """
    metadata = _converted(raw, Identity).metadata
    parsed = [_converted(event, StoredEvent) for event in events]
    rows = [_row(event) for event in parsed if _is_about(event, metadata)]
    return JobInput(
        namespace=plain(metadata.namespace or _DEFAULT_NAMESPACE),
        name=plain(metadata.name),
        uid=metadata.uid,
        created_at=moment(metadata.creation_timestamp),
        job=parse(TrainingJob, raw),
        events=tuple(sorted(rows, key=lambda row: row.at or 0.0, reverse=True)),
        as_of=as_of,
        remarks=remarks,
    )


def _converted(raw: Json, kind: type[T]) -> T:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        raise ApiError(path=path.strip("`").removeprefix("."), problem=problem) from None


def _is_about(event: StoredEvent, job: ObjectMetadata) -> bool:
    regarding = event.regarding or event.involved_object
    if regarding is None or regarding.kind != "TrainingJob":
        return False
    same = _full_name(regarding) == _full_name(job)
    return same and (not job.uid or not regarding.uid or regarding.uid == job.uid)


def _full_name(named: EventSubject | ObjectMetadata) -> tuple[str, str]:
    return named.namespace or _DEFAULT_NAMESPACE, named.name


def _row(event: StoredEvent) -> EventRow:
    series = event.series or EventSeries()
    return EventRow(
        at=moment(
            series.last_observed_time
            or event.last_timestamp
            or event.deprecated_last_timestamp
            or event.event_time
            or event.metadata.creation_timestamp
        ),
        warning=event.type == "Warning",
        reason=plain(event.reason or ""),
        note=plain(event.note or event.message or ""),
        times=max(series.count, event.count or 1, event.deprecated_count or 1),
    )
