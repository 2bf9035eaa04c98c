"""Kubernetes events as `kubectl describe` shows them: few, aggregated, and never blocking.

All occurrences for one object and one reason are one Event, whose series counts them. Its name is
derived from (uid, reason), so a restarted operator continues it. It is written when its count
reaches one of `WRITE_AT`: at most four writes for each reason in an object's life. `record` only
stores, and `run` writes. Events that cannot be written are dropped. They inform, and nothing
depends on them.

Events are not watched. `events_about` reads those of one object.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from drumline.kube import codec, reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import AlreadyExists, KubeError, NotFound
from drumline.kube.kinds import EVENTS, Resource
from drumline.kube.silences import Silences
from drumline.kube.views import EventView

# Four writes keep a crash loop from filling etcd: events are the largest part of many clusters.
WRITE_AT: Final = frozenset({1, 2, 10, 100})
"""The counts at which a series is written."""
_READ_EVENTS: Final = 50
# Bounded by recency: an operator that lives for months must not remember every job.
_REMEMBERED_OBJECTS: Final = 16_384
# A full queue drops events. Waiting here would delay the reconciliation that reports them.
_QUEUED_WRITES: Final = 1024
_SLOW_SECONDS: Final = 1.0
_SILENT_SECONDS: Final = 60.0
"""Time without events of a namespace after a write that failed slowly."""
# The API server rejects a note above 1,024 bytes (noteLengthLimit in pkg/apis/core/validation).
_MAX_NOTE_BYTES: Final = 1024
# The API server requires this namespace for events about cluster-scoped objects.
_CLUSTER_EVENTS_NAMESPACE: Final = "default"


async def events_about(client: KubeClient, *, namespace: str, uid: str) -> list[EventView]:
    """Return the events about one object, at most `_READ_EVENTS` of them.

    The API server reads all events of the namespace for it, so call it rarely.

    Args:
        client: sends the requests.
        namespace: namespace of the object.
        uid: uid of the object.

    Raises:
        Forbidden: RBAC does not allow it.
        KubeError: they could not be read.
    """
    page = await reads.first_page(
        client,
        EVENTS,
        namespace=namespace,
        field_selector=f"regarding.uid={uid}",
        limit=_READ_EVENTS,
    )
    # A foreign controller may write an event that this decoder rejects. The others still help.
    return [event for raw in page.items if (event := _decoded(raw)) is not None]


def _decoded(raw: bytes) -> EventView | None:
    try:
        return codec.event(raw)
    except codec.Undecodable:
        return None


class Severity(StrEnum):
    """Severity of an event: whether it needs attention."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Regarding:
    """The object an event is about; `namespace` is empty for cluster-scoped kinds."""

    resource: Resource
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One thing that happened.

    Attributes:
        regarding: To what.
        reason: Why, in CamelCase: what is aggregated under one Event.
        action: What Drumline did about it, in CamelCase.
        note: The sentence for people; that of a series' first occurrence stays.
        severity: Whether the event needs attention.
    """

    regarding: Regarding
    reason: str
    action: str
    note: str
    severity: Severity = Severity.NORMAL


@dataclass(frozen=True, slots=True, kw_only=True)
class _Write:
    occurrence: Occurrence
    count: int
    time: str


class EventRecorder:
    """Notes what happens, and writes it in its own time.

    Args:
        client: The client to write with.
        instance: Which process says so, for instance the pod's name.
        wall: The time of day.
        monotonic: Monotonic seconds.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        instance: str,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.dropped_total = 0
        self._client = client
        self._instance = instance
        self._wall = wall
        self._silences = Silences(seconds=_SILENT_SECONDS, clock=monotonic)
        self._counts: OrderedDict[str, dict[str, int]] = OrderedDict()
        """Counts by uid of the object, then by reason."""
        self._queue: asyncio.Queue[_Write] = asyncio.Queue(_QUEUED_WRITES)

    def record(self, occurrence: Occurrence) -> None:
        """Note it; never blocks, never fails."""
        counts = self._counts.setdefault(occurrence.regarding.uid, {})
        self._counts.move_to_end(occurrence.regarding.uid)
        count = counts[occurrence.reason] = counts.get(occurrence.reason, 0) + 1
        # The oldest object is forgotten. Its next event continues the stored series by its name.
        if len(self._counts) > _REMEMBERED_OBJECTS:
            self._counts.popitem(last=False)
        if count in WRITE_AT:
            self._enqueue(_Write(occurrence=occurrence, count=count, time=self._now()))

    def forget(self, uid: str) -> None:
        """Forget a deleted object."""
        self._counts.pop(uid, None)

    async def run(self) -> None:
        """Write what was noted, until cancelled."""
        while True:
            write = await self._queue.get()
            namespace = write.occurrence.regarding.namespace or ""
            try:
                if namespace in self._silences:
                    self.dropped_total += 1
                    continue
                await self._write(write)
            except KubeError as error:
                # Nothing depends on an event, so a failed write is counted and never repeated.
                self.dropped_total += 1
                if error.seconds >= _SLOW_SECONDS:
                    self._silences.add(namespace)
            finally:
                self._queue.task_done()

    async def flush(self) -> None:
        """Return once everything noted so far was written or dropped; needs `run` beside it."""
        await self._queue.join()

    def _enqueue(self, write: _Write) -> None:
        try:
            self._queue.put_nowait(write)
        except asyncio.QueueFull:
            # The count stays visible as a metric. A silent drop would look like a quiet cluster.
            self.dropped_total += 1

    async def _write(self, write: _Write) -> None:
        try:
            await (self._create(write) if write.count == 1 else self._count_on(write))
        except AlreadyExists:
            # The operator wrote it before a restart. Keep its note, and continue the series.
            return
        except NotFound:
            # Events expire after an hour: create it again.
            await self._create(write)

    async def _create(self, write: _Write) -> None:
        occurrence = write.occurrence
        regarding = occurrence.regarding
        body: dict[str, Any] = {
            "metadata": {"name": _name(occurrence), "namespace": _namespace(regarding)},
            # events.k8s.io/v1 requires eventTime and both reporting fields, otherwise it answers
            # 422.
            "eventTime": write.time,
            "reportingController": "drumline.dev/operator",
            "reportingInstance": self._instance,
            "type": occurrence.severity,
            "reason": occurrence.reason,
            "action": occurrence.action,
            "note": _bounded(occurrence.note),
            "regarding": {
                "apiVersion": regarding.resource.api_version,
                "kind": regarding.resource.kind,
                "namespace": regarding.namespace,
                "name": regarding.name,
                "uid": regarding.uid,
            },
        }
        # An event that expired and is created again continues its count.
        if write.count > 1:
            body["series"] = _series(write)
        await writes.create(self._client, EVENTS, namespace=_namespace(regarding), body=body)

    # The note and other fields are immutable (ValidateEventUpdate), so only the series is sent.
    async def _count_on(self, write: _Write) -> None:
        await writes.merge_patch(
            self._client,
            EVENTS,
            namespace=_namespace(write.occurrence.regarding),
            name=_name(write.occurrence),
            body={"series": _series(write)},
        )

    def _now(self) -> str:
        return self._wall().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _series(write: _Write) -> dict[str, Any]:
    return {"count": write.count, "lastObservedTime": write.time}


def _name(occurrence: Occurrence) -> str:
    regarding = occurrence.regarding
    series = f"{regarding.uid}/{occurrence.reason}".encode()
    # 253 characters is the limit of a name, and 200 + 1 + 16 leaves a margin.
    return f"{regarding.name[:200]}.{hashlib.sha256(series).hexdigest()[:16]}"


def _namespace(regarding: Regarding) -> str:
    return regarding.namespace or _CLUSTER_EVENTS_NAMESPACE


def _bounded(note: str) -> str:
    encoded = note.encode()
    if len(encoded) <= _MAX_NOTE_BYTES:
        return note
    # Cut on bytes, and drop a partial character: the server measures bytes.
    return encoded[: _MAX_NOTE_BYTES - 3].decode(errors="ignore") + "..."
