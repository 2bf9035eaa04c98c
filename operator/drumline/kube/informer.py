"""A cache of one kind of object that stays correct: list, watch, and list again if needed.

The stream is resumed from the last seen version, bookmarks included, after it breaks, becomes
silent or is rejected (429, 401, 403, 5xx). So an overloaded server does not have to send whole
lists in addition. The informer lists again only when resuming cannot work. The server reports that
the version is gone (410, as an answer or inside the stream) or invalid (400). Or two open streams
in a row contain not even a bookmark: then the version may lie in the future of a cluster restored
from a backup, whose server waits for it silently. A document that cannot be decoded is put in
quarantine: it is counted and reported, its last good view is kept, and the other documents are
processed. Kinds with an `in_part` decoder show what can be read instead.

Deleting a namespace deletes the rights in it. An informer of one namespace may treat it as empty
(`on_forbidden`) after half a minute of only 403. It continues to ask, so objects that exist again
are seen again. The same holds for 404, for a kind that is not served.

The owner runs `run()` as a task for the life of the cache. Everything else may be called at any
time from the same event loop.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from drumline.kube import errors
from drumline.kube.client import KubeClient
from drumline.kube.kinds import Resource
from drumline.kube.line_splitter import WatchLineSplitter
from drumline.kube.reads import PAGE_LIMIT, list_pages, newest_version
from drumline.kube.request import Request, Verb
from drumline.kube.retry import RetryPolicy
from drumline.kube.store import Event, Store
from drumline.kube.views import Key, View
from drumline.kube.watch_decoder import Decode, Quarantined, WatchDecoder

V = TypeVar("V", bound=View)
STALE_SECONDS: Final = 180.0
"""Bookmarks arrive every minute, and a silent stream is opened again after 70 s."""
CATCH_UP_SECONDS: Final = 3
"""Length of the watch of a catch-up. A bookmark arrives 2 s before its end."""
CATCH_UP_WATCHES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class InformerTiming:
    """Time limits of an informer.

    Attributes:
        silence_seconds: time without a line after which a stream is broken. Bookmarks arrive every
            minute.
        silent_streams: number of open streams in a row without a line, after which it lists again.
        watch_seconds: length of one watch. Up to half as much is added at random.
        relist_spread_seconds: longest wait before it lists again after a 410, so that the informers
            of many processes do not list at once.
        backoff: pauses between failed attempts, at least the server's Retry-After up to its
            patience. Its number of attempts is ignored here.
        forbidden_seconds: time of only 403 after which a namespace counts as empty. A starting API
            server, or a role that is created again, rejects requests for moments.
    """

    silence_seconds: float = 70.0
    silent_streams: int = 2
    watch_seconds: float = 300.0
    relist_spread_seconds: float = 1.0
    backoff: RetryPolicy = field(default_factory=RetryPolicy)
    forbidden_seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Objects of a kind that an informer keeps.

    Attributes:
        namespace: only this namespace. None means all.
        label_selector: only objects with these labels.
        field_selector: only objects with these fields.
    """

    namespace: str | None = None
    label_selector: str = ""
    field_selector: str = ""

    def query(self) -> dict[str, str]:
        """Return the query parameters of this selection."""
        selectors = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: value for name, value in selectors.items() if value}


class Informer(Generic[V]):
    """The cache of one kind.

    Args:
        client: The client to read with.
        resource: The kind.
        decode: Turns one document into its view; raises `codec.Undecodable`.
        selection: Which objects to keep.
        timing: When to give up waiting.
        on_quarantine: Called with every document that could not be read; must not raise.
        in_part: Turns a document that `decode` rejects into a view of what can be read.
        on_forbidden: Called when 403 is treated as an empty list; must not raise. None: 403 is
            never treated so.
        page_limit: How many objects one page of a list holds.
        clock: A monotonic clock.
        jitter: Where the spread of the pauses comes from.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        decode: Decode[V],
        selection: Selection | None = None,
        timing: InformerTiming | None = None,
        on_quarantine: Callable[[Quarantined], None] = lambda _: None,
        in_part: Decode[V] | None = None,
        on_forbidden: Callable[[errors.Unreadable], None] | None = None,
        page_limit: int = PAGE_LIMIT,
        clock: Callable[[], float] = time.monotonic,
        jitter: random.Random | None = None,
    ) -> None:
        self.resource = resource
        self.relists_total = 0
        self.reconnects_total = 0
        self.is_forbidden = False
        """True if it counts as empty, because it may not be read."""
        self._client = client
        self._selection = selection or Selection()
        self._on_forbidden = on_forbidden
        self._forbidden_since: float | None = None
        self._timing = timing or InformerTiming()
        self._page_limit = page_limit
        self._clock = clock
        self._jitter = jitter or random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._store: Store[V] = Store(emit=self._emit)
        self._decoder = WatchDecoder(
            resource=resource,
            store=self._store,
            decode=decode,
            on_quarantine=on_quarantine,
            in_part=in_part,
        )
        self._subscribers: list[Callable[[Event[V]], None]] = []
        self._rewind_subscribers: list[Callable[[], None]] = []
        # Minus infinity makes an informer that never received anything stale from the start.
        self._heard_at = -math.inf
        self._changed = asyncio.Event()
        self._failures = 0
        self._silent_streams = 0
        # A catch-up and `run` may both want to list. The lock keeps the older answer from winning.
        self._listing = asyncio.Lock()

    @property
    def has_synced(self) -> bool:
        """Return whether it has received a whole list once, or counts as empty."""
        return self.is_forbidden or bool(self._store.resource_version)

    @property
    def quarantined_total(self) -> int:
        """Return the number of documents that could not be read."""
        return self._decoder.quarantined_total

    @property
    def resource_version(self) -> str:
        """The version up to which everything has been seen; empty before the first list."""
        return self._store.resource_version

    def get(self, key: Key) -> V | None:
        """Return the object at this key as last seen, or None."""
        return self._store.get(key)

    def values(self) -> Collection[V]:
        """Return a live view of all known objects. Copy it before an await."""
        return self._store.values()

    def freshness_seconds(self, now: float) -> float:
        """Return the seconds since the server was heard. Infinite before the first time."""
        return now - self._heard_at

    def silence(self, now: float) -> str | None:
        """Return a sentence if the server was not heard for too long, otherwise None.

        Args:
            now: monotonic seconds.
        """
        age = self.freshness_seconds(now)
        if age <= STALE_SECONDS:
            return None
        return f"the watch of {self.resource.plural} has received nothing for {age:.0f} s"

    def subscribe(self, callback: Callable[[Event[V]], None]) -> Callable[[], None]:
        """Call back with every later change, in order; returns the function that ends it.

        The callback runs inside the stream: it notes and returns, and it must not raise.
        """
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    # Callers remember versions of their own writes. After a restore those versions may never come.
    def subscribe_to_rewinds(self, callback: Callable[[], None]) -> None:
        """Call back when a list is older than what was seen: the cluster was restored.

        Called before the list's events; versions known from before mean nothing any more.
        """
        self._rewind_subscribers.append(callback)

    async def wait_for(self, predicate: Callable[[], bool]) -> None:
        """Return once the predicate holds; it is asked again whenever something was heard."""
        # The event is replaced at every answer, so a waiter cannot miss the one between its two
        # checks.
        while not predicate():
            await self._changed.wait()

    async def wait_synced(self) -> None:
        """Return once it `has_synced`."""
        await self.wait_for(lambda: self.has_synced)

    def has_reached(self, resource_version: str) -> bool:
        """Return whether the cache contains the write that made this version. O(1)."""
        return self._store.has_reached(resource_version)

    async def wait_version(self, resource_version: str) -> None:
        """Return once `has_reached`; the caller bounds the wait."""
        await self.wait_for(lambda: self.has_reached(resource_version))

    async def catch_up(self) -> None:
        """Return once every write that was answered before this call is part of what is seen here.

        A consistent read says which version that is. Where nothing changes, the watch would reach
        it with a bookmark, and bookmarks come every minute. So a watch of 3 s is opened beside it:
        it begins at what is seen here, and the API server sends it a bookmark 2 s before its end
        (`nextBookmarkTime` in apiserver/pkg/storage/cacher/cache_watcher.go). Both streams are
        complete from a version that was seen here, and the store takes only what is newer, so
        whichever is ahead counts. Where that does not help, all is listed again: an informer with a
        selector is sent no bookmark for a version that one of the objects it does not select made.

        Failures of the server end in pauses; the caller bounds the wait.
        """
        attempt = 0
        # The caller has its own deadline, so this loop only spaces out the attempts.
        while True:
            try:
                if self.is_forbidden:  # what was dropped is older than the version seen here
                    return await self._list()
                return await self._catch_up()
            except errors.KubeError as error:
                # Still 403 or 404: an empty cache is the best answer that this identity can get.
                if self.is_forbidden and isinstance(error, errors.Unreadable):
                    return None
                attempt += 1
                await asyncio.sleep(
                    self._timing.backoff.endless_pause_seconds(
                        error, attempt=attempt, jitter=self._jitter
                    )
                )

    async def _catch_up(self) -> None:
        # Phase 1: get a version that covers every write answered before this call.
        version = await newest_version(
            self._client,
            self.resource,
            namespace=self._selection.namespace,
            query=self._selection.query(),
        )
        # Phase 2: try to reach it with short watches, which cost less than a list.
        try:
            for _ in range(CATCH_UP_WATCHES):
                if self.has_reached(version):
                    return
                await self._watch_until(version)
        except errors.KubeError:  # the version seen here is too old, or the server has no time
            pass
        # Phase 3: list. The version belongs to an object outside the selector, or the watch failed.
        if not self.has_reached(version):
            await self._list()

    async def _watch_until(self, version: str) -> None:
        """Take in a short stream, as far as this version."""
        splitter = WatchLineSplitter()
        # The main stream continues beside this one. Both write to the store, which ignores
        # repetitions.
        request = self._watch_request(seconds=CATCH_UP_SECONDS)
        async with self._client.stream(
            request, silence_seconds=self._timing.silence_seconds
        ) as chunks:
            async for chunk in chunks:
                for line in splitter.feed(chunk):
                    self._decoder.line(line)
                self._heard()
                if self.has_reached(version):
                    return

    async def run(self) -> None:
        """Keep the cache true, until cancelled. Failures of the server end in pauses, not here."""
        stale = True
        while True:
            try:
                if stale:
                    # A failed list leaves `stale` set, so the next round lists again.
                    await self._list()
                    stale = False
                await self._watch()
            except errors.Gone:
                # 410: etcd compacted the version (every 5 minutes by default), or the watch cache
                # dropped it.
                stale = True
                await asyncio.sleep(self._jitter.uniform(0, self._timing.relist_spread_seconds))
            except errors.KubeError as error:
                self._note_forbidden(error)
                # 400: the server rejects the version itself, so only a list helps. After other
                # errors it resumes.
                stale = stale or self.is_forbidden or isinstance(error, errors.Invalid)
                await self._pause(error)
            # Two silent streams in a row may also mean a version in the future, where the server
            # just waits.
            stale = stale or self._silent_streams >= self._timing.silent_streams

    def _note_forbidden(self, error: errors.KubeError) -> None:
        # Any other answer breaks the series of 403, so the half minute starts again.
        if not isinstance(error, errors.Unreadable) or self._on_forbidden is None:
            self._forbidden_since = None
            return
        now = self._clock()
        if self._forbidden_since is None:
            self._forbidden_since = now
        lasts = now - self._forbidden_since >= self._timing.forbidden_seconds
        if lasts and not self.is_forbidden:
            self.is_forbidden = True
            # The version stays: after the right returns, the next list must not look like a rewind.
            self._store.replace((), resource_version=self._store.resource_version)
            self._on_forbidden(error)
        # A 403 is an answer: the server is reachable, so the cache does not count as stale.
        self._note_answer()

    async def _pause(self, error: errors.KubeError | None = None) -> None:
        self._failures += 1
        await asyncio.sleep(
            self._timing.backoff.endless_pause_seconds(
                error, attempt=self._failures, jitter=self._jitter
            )
        )

    async def _list(self) -> None:
        """List all; two at a time could end in the wrong order, as a rewind."""
        async with self._listing:
            await self._replace_all()

    async def _replace_all(self) -> None:
        views: list[V] = []
        unread: set[Key] = set()
        # All pages of one list carry the same version, so the last one may overwrite the others.
        version = ""
        pages = list_pages(
            self._client,
            self.resource,
            namespace=self._selection.namespace,
            label_selector=self._selection.label_selector,
            field_selector=self._selection.field_selector,
            limit=self._page_limit,
        )
        # A 410 between two pages raises here, before anything was put into the store.
        async for page in pages:
            version = page.resource_version
            read, failed = self._decoder.items(page.items)
            views += read
            unread |= failed
        self.relists_total += 1
        # Subscribers clear their remembered versions first. Otherwise the events look like old
        # news.
        if self._store.is_rewind(version):
            for callback in self._rewind_subscribers:
                callback()
        # Undecodable objects keep their last good view: a broken manifest must not look like a
        # deletion.
        self._store.replace(views, resource_version=version, keep=unread)
        self._heard()

    def _watch_request(self, *, seconds: float) -> Request:
        """Return a watch request from the last seen version on."""
        return Request(
            verb=Verb.WATCH,
            resource=self.resource,
            path=self.resource.path(namespace=self._selection.namespace),
            query=self._selection.query()
            | {
                "watch": "true",
                # Bookmarks move the version forward on quiet kinds. Without them a resume gets 410.
                "allowWatchBookmarks": "true",
                # The server sends all events after this version. Without it, a watch starts with
                # synthetic ADDEDs.
                "resourceVersion": self._store.resource_version,
                # The server ends the watch itself, so that load spreads again after an API server
                # restart.
                "timeoutSeconds": str(math.ceil(seconds)),
            },
        )

    async def _watch(self) -> None:
        # The random part keeps the watches of one process from ending in the same second.
        seconds = self._timing.watch_seconds * self._jitter.uniform(1.0, 1.5)
        request = self._watch_request(seconds=seconds)
        self.reconnects_total += 1
        splitter = WatchLineSplitter()
        heard = False
        async with self._client.stream(
            request, silence_seconds=self._timing.silence_seconds
        ) as chunks:
            # Measured from the open: time for the connection must not count as silence.
            opened_at = self._clock()
            try:
                async for chunk in chunks:
                    heard = True
                    for line in splitter.feed(chunk):
                        self._decoder.line(line)
                    self._heard()
            finally:
                # Only a stream that stayed open and silent is suspect. A refused one raised before
                # this point.
                if not heard and self._clock() >= opened_at + self._timing.silence_seconds:
                    self._silent_streams += 1
        if not heard:
            # A proxy that closes every stream at once must not be asked in a tight circle.
            await self._pause()

    def _heard(self) -> None:
        self._failures = 0
        self._silent_streams = 0
        self._forbidden_since = None
        self.is_forbidden = False
        self._note_answer()

    def _note_answer(self) -> None:
        self._heard_at = self._clock()
        # Swap before the set: a callback that waits again must wait for the next answer.
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _emit(self, event: Event[V]) -> None:
        # The copy allows a subscriber to leave while it is called.
        for callback in tuple(self._subscribers):
            callback(event)
