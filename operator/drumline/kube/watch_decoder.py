"""Decode the documents of lists and watches into a store. Bad documents are quarantined.

A bad document must not stop the stream. It is counted and reported. Its object is read in part if
its kind has a decoder for that, otherwise its last good view stays. The deletion of an object
counts even if its last state cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from drumline.kube import codec, errors
from drumline.kube.kinds import Resource
from drumline.kube.line_splitter import Oversized
from drumline.kube.nesting import flattened
from drumline.kube.store import Change, Store
from drumline.kube.views import Key, View

V = TypeVar("V", bound=View)
Decode = Callable[[bytes | msgspec.Raw], V]


class _Version(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The metadata of a bookmark."""

    resource_version: str


class _Bookmark(msgspec.Struct, frozen=True, gc=False):
    """Progress of a watch."""

    metadata: _Version


class _WatchLine(msgspec.Struct, frozen=True, gc=False):
    """One line of a watch; the object waits for the decoder its type asks for."""

    type: str
    object: msgspec.Raw


MAX_REASON_CHARS: Final = 512
_decode_line: Final = msgspec.json.Decoder(_WatchLine).decode
_decode_bookmark: Final = msgspec.json.Decoder(_Bookmark).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A document that could not be read.

    Attributes:
        resource: expected kind of the document.
        key: namespace and name. None: they could not be read.
        reason: the error.
    """

    resource: Resource
    key: Key | None
    reason: str


class WatchDecoder(Generic[V]):
    """Reads documents into a store.

    Args:
        resource: The kind they are of.
        store: Where their views go.
        decode: Turns one document into its view; raises `codec.Undecodable`.
        on_quarantine: Called with every document that could not be read; must not raise.
        in_part: Turns a document that `decode` rejects into a view of what can be read; raises
            `codec.Undecodable`. None: the last good view stays.
    """

    def __init__(
        self,
        *,
        resource: Resource,
        store: Store[V],
        decode: Decode[V],
        on_quarantine: Callable[[Quarantined], None],
        in_part: Decode[V] | None = None,
    ) -> None:
        self.quarantined_total = 0
        self._resource = resource
        self._store = store
        self._decode = decode
        self._on_quarantine = on_quarantine
        self._in_part = in_part

    def items(self, items: Iterable[bytes]) -> tuple[list[V], set[Key]]:
        """Return the views of a list's page, and the keys of objects that could not be read."""
        views: list[V] = []
        unread: set[Key] = set()
        # One bad object must not hide the others, so the error is taken for each item.
        for item in items:
            try:
                views.append(self._decode(item))
            except codec.Undecodable as error:
                key = self._quarantine(item, reason=str(error))
                if (view := self._read_in_part(item)) is not None:
                    views.append(view)
                elif key is not None:
                    unread.add(key)
        return views, unread

    def line(self, line: bytes | Oversized) -> None:
        """Process one line of a watch.

        Raises:
            Gone: the server reports that the stream's version is gone.
            StatusError: the server ends the stream with any other error.
        """
        # The text of the line is gone, so the object keeps its old view until the next list.
        if isinstance(line, Oversized):
            self._note(key=None, reason=f"a line of {line.size_bytes} bytes")
            return
        try:
            event = _watch_line(line)
            # An expired watch answers 200 and sends its 410 as an event of the type ERROR.
            if event.type == "ERROR":
                raise errors.from_stream(bytes(event.object))
            # A bookmark has an empty object except for its version. Its decoder reads only that.
            if event.type == "BOOKMARK":
                self._store.advance(_decode_bookmark(event.object).metadata.resource_version)
                return
            # A new event type of a later API raises here, and is reported instead of ignored.
            change = Change(event.type)
        except ValueError as error:  # msgspec's errors among them
            self._note(key=None, reason=str(error))
            return
        self._take_event(change, event.object)

    def _take_event(self, change: Change, raw: msgspec.Raw) -> None:
        try:
            self._store.apply(change, self._decode(raw))
        except codec.Undecodable as error:
            self._quarantine(bytes(raw), reason=str(error))
            if (view := self._read_in_part(raw)) is not None:
                self._store.apply(change, view)
            # Without the discard, a deleted pod would hold its GPUs in the cache forever.
            elif change is Change.DELETED:
                self._discard(raw)

    def _read_in_part(self, raw: bytes | msgspec.Raw) -> V | None:
        try:
            return self._in_part(raw) if self._in_part is not None else None
        except codec.Undecodable:
            return None

    def _discard(self, raw: msgspec.Raw) -> None:
        try:
            metadata = codec.identity(raw)
        except codec.Undecodable:
            return
        # The version does not advance: the store has not seen the event in its order.
        self._store.discard(codec.key(metadata), uid=metadata.uid)

    def _quarantine(self, raw: bytes, *, reason: str) -> Key | None:
        try:
            key = codec.key(codec.identity(raw))
        except codec.Undecodable:
            key = None
        self._note(key=key, reason=reason)
        return key

    def _note(self, *, key: Key | None, reason: str) -> None:
        self.quarantined_total += 1
        reason = reason[:MAX_REASON_CHARS]  # it may quote a field of 256 KiB
        self._on_quarantine(Quarantined(resource=self._resource, key=key, reason=reason))


def _watch_line(line: bytes) -> _WatchLine:
    try:
        return _decode_line(line)
    except RecursionError:  # even what is skipped is walked through
        return _decode_line(flattened(line))
