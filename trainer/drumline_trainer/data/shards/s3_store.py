"""Shards streamed from an S3-compatible store: blocks by ranged reads, through a bounded cache.

`contract.buckets.objects` reads endpoint, region and credentials from the environment, and retries
transient failures. No message holds a credential.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TypeVar

from drumline_contract.buckets.failures import NO_CREDENTIALS, BucketError
from drumline_contract.buckets.objects import ObjectBucket
from drumline_contract.config import ConfigError
from drumline_contract.config.data import S3_SCHEME
from drumline_trainer.data.shards.text import ShardBlock

RETRIES = 6
"""Retries of a request. Their pauses add up to 6 seconds, because `close` waits for running
requests."""
_REQUEST_SECONDS = 20
_READERS = 8

T = TypeVar("T")


class StoreUnreachableError(RuntimeError):
    """The store did not answer, or only with transient errors; a later retry may succeed."""


class S3ShardStore:
    """A `ShardStore` of the objects under a prefix.

    Raises:
        ConfigError: the bucket is not usable.
    """

    def __init__(self, source: str, *, cache_bytes: int) -> None:
        self.location = source.rstrip("/")
        """Bucket and prefix."""
        bucket, _, self._prefix = self.location.removeprefix(S3_SCHEME).partition("/")
        self._cache_bytes = cache_bytes
        try:
            self._bucket = ObjectBucket(
                f"{S3_SCHEME}{bucket}", retries=RETRIES, request_seconds=_REQUEST_SECONDS
            )
        except BucketError as error:  # no request was made
            raise ConfigError(f"data.source: {error}") from None
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="shards")
        self._lock = threading.Lock()
        self._cache: OrderedDict[ShardBlock, Future[memoryview]] = OrderedDict()
        """Blocks that are cached or being fetched, least recently used first."""
        self._held_bytes = 0

    def read_file(self, name: str, *, limit: int) -> bytes:
        """Read a small object.

        Raises:
            ConfigError: it does not exist, or is longer than `limit` bytes.
        """
        stored = _checked(lambda: self._bucket.get(self._key(name), limit=limit))
        if stored is None:
            raise ConfigError(f"data.source: {self.location}/{name}: no such object")
        return stored.body

    def sizes(self) -> dict[str, int]:
        """Return the size of each object in bytes, by name, as the store lists them."""
        return _checked(lambda: self._bucket.sizes(self._prefix))

    def block(self, block: ShardBlock) -> memoryview:
        """Return the content, from the cache or fetched.

        Raises:
            StoreUnreachableError: the store does not answer, or was closed.
            ShardMismatchError: the content differs from the index.
        """
        future = self._requested(block)
        try:
            return future.result()
        except CancelledError:
            raise StoreUnreachableError(f"data.source: {self.location} was closed") from None
        except BaseException:
            with self._lock:
                if self._cache.get(block) is future:  # so that the next request fetches it again
                    self._evict(block)
            raise

    def prefetch(self, blocks: Iterable[ShardBlock]) -> None:
        """Fetch these in threads, at most half a cache of them, so that none evicts another."""
        room = self._cache_bytes // 2
        for block in dict.fromkeys(blocks):
            room -= block.stop - block.start
            if room < 0:
                return
            self._requested(block)

    def close(self) -> None:
        """End the threads: cancel queued fetches, wait for running ones."""
        self._pool.shutdown(cancel_futures=True)

    def _requested(self, block: ShardBlock) -> Future[memoryview]:
        with self._lock:
            future = self._cache.get(block)
            if future is None:
                try:
                    future = self._pool.submit(self._fetch, block)
                except RuntimeError:
                    raise StoreUnreachableError(
                        f"data.source: {self.location} was closed"
                    ) from None
                self._cache[block] = future
                self._held_bytes += block.stop - block.start
                self._evict_oldest()
            self._cache.move_to_end(block)
            return future

    def _evict_oldest(self) -> None:
        """Evict down to the cache's size; blocks that are being fetched stay."""
        for block, future in list(self._cache.items()):
            if self._held_bytes <= self._cache_bytes:
                return
            if future.done():
                self._evict(block)

    def _evict(self, block: ShardBlock) -> None:
        del self._cache[block]
        self._held_bytes -= block.stop - block.start

    def _fetch(self, block: ShardBlock) -> memoryview:
        key = self._key(block.file)
        content = _checked(lambda: self._bucket.read(key, start=block.start, stop=block.stop))
        block.check(content, where=self.location)
        return content

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}".lstrip("/")


def _checked(work: Callable[[], T]) -> T:
    """Call `work`; errors of the bucket are raised as our own."""
    try:
        return work()
    except BucketError as error:
        message = f"data.source: {error}"
        if error.errno == errno.EREMOTEIO and NO_CREDENTIALS not in message:
            raise StoreUnreachableError(message) from None
        raise ConfigError(message) from None
