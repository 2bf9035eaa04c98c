"""Shards streamed from an S3-compatible store: blocks by ranged reads, through a bounded cache.

Endpoint, region and credentials come from the usual AWS environment variables (`AWS_ENDPOINT_URL`,
`AWS_REGION`, `AWS_ACCESS_KEY_ID`, ...) and appear in no message: of an error of the library only
its kind is reported. Transient failures are retried a bounded number of times, with exponential
backoff.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, TypeVar

from drumline_trainer.config import ConfigError
from drumline_trainer.config.data import S3_SCHEME
from drumline_trainer.data.shards.text import ShardBlock

_READERS = 8
_ATTEMPTS = 5
"""Per request."""
_FIRST_PAUSE_SECONDS = 0.2
"""Between the first two attempts; the pause doubles after each."""
_CONNECT_SECONDS = 5
_READ_SECONDS = 20
_RETRYABLE = {"SlowDown", "RequestTimeout", "RequestTimeTooSkewed", "InternalError"}
"""Retryable error codes; so are the statuses 429, 500 and above."""

T = TypeVar("T")


class StoreUnreachableError(RuntimeError):
    """The store did not answer, or only with transient errors; a later retry may succeed."""


class S3ShardStore:
    """A `ShardStore` of the objects under a prefix."""

    def __init__(self, source: str, *, cache_bytes: int) -> None:
        bucket, _, prefix = source.removeprefix(S3_SCHEME).partition("/")
        self._bucket = bucket
        self._prefix = f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""
        self._cache_bytes = cache_bytes
        self._client, self._failures = _client()
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="shards")
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._cache: OrderedDict[ShardBlock, Future[bytes]] = OrderedDict()
        """Blocks that are cached or being fetched, least recently used first."""
        self._held_bytes = 0

    @property
    def location(self) -> str:
        """Bucket and prefix."""
        return f"{S3_SCHEME}{self._bucket}/{self._prefix}".rstrip("/")

    def read_file(self, name: str, *, limit: int) -> bytes:
        """The content of a small object."""
        content = self._get(name, f"bytes=0-{limit}")
        if len(content) > limit:
            raise ConfigError(f"data.source: {self.location}/{name} is longer than {limit} bytes")
        return content

    def sizes(self) -> dict[str, int]:
        """Size of each object in bytes, by name, as the store lists them."""
        pages = self._client.get_paginator("list_objects_v2")

        def listed() -> dict[str, int]:
            return {
                entry["Key"].removeprefix(self._prefix): entry["Size"]
                for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix)
                for entry in page.get("Contents", ())
            }

        return self._retried(listed, name="")

    def block(self, block: ShardBlock) -> bytes:
        """The content, from the cache or fetched."""
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
        """End the threads: cancel queued fetches, wait for the current attempt of running ones."""
        self._closed.set()
        self._pool.shutdown(cancel_futures=True)
        self._client.close()

    def _requested(self, block: ShardBlock) -> Future[bytes]:
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

    def _fetch(self, block: ShardBlock) -> bytes:
        content = self._get(block.file, f"bytes={block.start}-{block.stop - 1}")
        block.check(content, where=self.location)
        return content

    def _get(self, name: str, wanted: str) -> bytes:
        """The answer's body."""
        key = f"{self._prefix}{name}"

        def body() -> bytes:
            answer = self._client.get_object(Bucket=self._bucket, Key=key, Range=wanted)
            with contextlib.closing(answer["Body"]) as stream:
                return stream.read()

        return self._retried(body, name=name)

    def _retried(self, read: Callable[[], T], *, name: str) -> T:
        """Call `read` up to `_ATTEMPTS` times; errors of the library are raised as our own."""
        where = f"data.source: {self.location}/{name}".rstrip("/")
        pause = _FIRST_PAUSE_SECONDS
        for _ in range(_ATTEMPTS - 1):
            try:
                return read()
            except self._failures.all as error:
                if not self._failures.transient(error):
                    raise self._failures.named(error, where=where) from None
            # jitter, so that ranks that failed together do not retry together
            if self._closed.wait(pause * random.uniform(0.5, 1.0)):  # noqa: S311 - not secret
                raise StoreUnreachableError(f"data.source: {self.location} was closed")
            pause *= 2
        try:
            return read()
        except self._failures.all as error:
            raise self._failures.named(error, where=where) from None


class _Failures:
    """The library's exceptions, classified. Their messages may name the endpoint."""

    def __init__(self) -> None:
        exceptions: Any = importlib.import_module("botocore.exceptions")

        self.all: Any = (exceptions.BotoCoreError, exceptions.ClientError)
        self._refused: Any = exceptions.ClientError
        self._keyless: Any = (
            exceptions.NoCredentialsError,
            exceptions.PartialCredentialsError,
        )
        self._lost: Any = (
            exceptions.ConnectionError,
            exceptions.HTTPClientError,
            exceptions.IncompleteReadError,
        )

    def transient(self, error: Any) -> bool:
        """Whether a retry may succeed."""
        if not isinstance(error, self._refused):
            return isinstance(error, self._lost)
        code, status = _answer(error)
        return code in _RETRYABLE or status == HTTPStatus.TOO_MANY_REQUESTS or status >= 500

    def named(self, error: Any, *, where: str) -> Exception:
        """The error of ours to raise instead."""
        if isinstance(error, self._keyless):
            return ConfigError(
                f"{where}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        summary = type(error).__name__
        if isinstance(error, self._refused):
            summary = "the store answered {} ({})".format(*_answer(error))
            if not self.transient(error):
                return ConfigError(f"{where}: {summary}; check the name and what the keys may read")
        return StoreUnreachableError(f"{where}: {summary}, {_ATTEMPTS} times")


def _answer(error: Any) -> tuple[str, int]:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return error.response.get("Error", {}).get("Code", "an error"), status


def _client() -> tuple[Any, _Failures]:
    try:
        boto3: Any = importlib.import_module("boto3")  # optional, without types
        botocore_config: Any = importlib.import_module("botocore.config")
    except ImportError as error:
        raise ConfigError(
            "data.source: s3:// needs the package boto3; install drumline[trainer-more]"
        ) from error
    config = botocore_config.Config(
        retries={"total_max_attempts": 1},  # retried here, where `close` can end it
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        max_pool_connections=_READERS,
    )
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    # not the library's default session, which keeps the credentials of its first use
    session = boto3.Session(region_name=region)
    return session.client("s3", config=config), _Failures()
