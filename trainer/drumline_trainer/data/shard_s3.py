"""Shards streamed from an S3-compatible store: blocks by ranged reads, through a bounded cache.

Endpoint, region and credentials come from the usual AWS environment variables (`AWS_ENDPOINT_URL`,
`AWS_REGION`, `AWS_ACCESS_KEY_ID`, ...) and appear in no message: what the library says about a
failure is reduced to its kind. Transient failures are tried again with growing pauses, a bounded
number of times.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, TypeVar

from drumline_trainer.config import ConfigError
from drumline_trainer.config.data import S3_SCHEME
from drumline_trainer.data.shard_text import Block

_READERS = 8
_ATTEMPTS = 5
"""Of each request; the pauses between them grow to 20 s at most."""
_CONNECT_SECONDS = 5
_READ_SECONDS = 20
_FINAL_STATUSES = {400, 401, 403, 404, 416}

T = TypeVar("T")


class StoreUnreachableError(RuntimeError):
    """The store did not answer, or not with what was asked for: trying again later may help."""


class ShardBucket:
    """A `ShardStore` of the objects under a prefix."""

    def __init__(self, source: str, *, cache_bytes: int) -> None:
        bucket, _, prefix = source.removeprefix(S3_SCHEME).partition("/")
        self._bucket = bucket
        self._prefix = f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""
        self._cache_bytes = cache_bytes
        self._client, self._failures = _client()
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="shards")
        self._lock = threading.Lock()
        self._cache: OrderedDict[Block, Future[bytes]] = OrderedDict()
        """Blocks being fetched or there, the one used longest ago first."""
        self._held_bytes = 0

    @property
    def where(self) -> str:
        """Bucket and prefix."""
        return f"{S3_SCHEME}{self._bucket}/{self._prefix}".rstrip("/")

    def whole(self, name: str, *, limit: int) -> bytes:
        """A small object."""
        with self._sentences(name):
            content = self._get(name, f"bytes=0-{limit}")
        if len(content) > limit:
            raise ConfigError(f"data.source: {self.where}/{name} is longer than {limit} bytes")
        return content

    def sizes(self) -> dict[str, int]:
        """Bytes of each object there is, as the store lists them."""
        pages = self._client.get_paginator("list_objects_v2")
        with self._sentences(""):
            return {
                found["Key"].removeprefix(self._prefix): found["Size"]
                for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix)
                for found in page.get("Contents", ())
            }

    def block(self, block: Block) -> bytes:
        """The content, from the cache or fetched."""
        future = self._asked(block)
        try:
            return future.result()
        except CancelledError:
            raise StoreUnreachableError(f"data.source: {self.where} was closed") from None
        except BaseException:
            with self._lock:
                if self._cache.get(block) is future:  # asked for again, it is fetched again
                    self._forget(block)
            raise

    def ahead(self, blocks: Sequence[Block]) -> None:
        """Fetch these in threads, as many as half the cache holds: none pushes out another."""
        room = self._cache_bytes // 2
        for block in dict.fromkeys(blocks):
            room -= block.stop - block.start
            if room < 0:
                return
            self._asked(block)

    def close(self) -> None:
        """End the threads: what waits is given up, what runs is waited for."""
        self._pool.shutdown(cancel_futures=True)
        self._client.close()

    def _asked(self, block: Block) -> Future[bytes]:
        with self._lock:
            future = self._cache.get(block)
            if future is None:
                try:
                    future = self._pool.submit(self._fetch, block)
                except RuntimeError:
                    raise StoreUnreachableError(f"data.source: {self.where} was closed") from None
                self._cache[block] = future
                self._held_bytes += block.stop - block.start
                self._forget_oldest()
            self._cache.move_to_end(block)
            return future

    def _forget_oldest(self) -> None:
        """Down to what the cache may hold; what is being fetched stays."""
        for block, future in list(self._cache.items()):
            if self._held_bytes <= self._cache_bytes:
                return
            if future.done():
                self._forget(block)

    def _forget(self, block: Block) -> None:
        del self._cache[block]
        self._held_bytes -= block.stop - block.start

    def _fetch(self, block: Block) -> bytes:
        with self._sentences(block.file):
            content = self._get(block.file, f"bytes={block.start}-{block.stop - 1}")
        block.check(content, where=self.where)
        return content

    def _get(self, name: str, wanted: str) -> bytes:
        """The answer's body; one that breaks off is asked for again."""
        key = f"{self._prefix}{name}"

        def get() -> bytes:
            answer = self._client.get_object(Bucket=self._bucket, Key=key, Range=wanted)
            with contextlib.closing(answer["Body"]) as body:
                return body.read()

        return _again(get, broken=self._failures.broken)

    @contextlib.contextmanager
    def _sentences(self, name: str) -> Iterator[None]:
        """The library's errors as ours, without the words in which it names the endpoint."""
        where = f"data.source: {self.where}/{name}".rstrip("/")
        try:
            yield
        except self._failures.refused as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            code = error.response.get("Error", {}).get("Code", "an error")
            said = f"{where}: the store answered {code} ({status})"
            if status in _FINAL_STATUSES:
                raise ConfigError(f"{said}; check the name and what the keys may read") from None
            raise StoreUnreachableError(f"{said} {_ATTEMPTS} times") from None
        except self._failures.keyless:
            raise ConfigError(
                f"{where}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ) from None
        except self._failures.any as error:
            raise StoreUnreachableError(f"{where}: {type(error).__name__}") from None


class _Failures:
    """The library's exceptions by what they mean for us."""

    def __init__(self) -> None:
        from botocore import exceptions  # noqa: PLC0415

        self.refused: Any = exceptions.ClientError
        self.keyless: Any = (
            exceptions.NoCredentialsError,
            exceptions.PartialCredentialsError,
            exceptions.NoRegionError,
        )
        self.broken: Any = (
            exceptions.IncompleteReadError,
            exceptions.ReadTimeoutError,
            exceptions.ResponseStreamingError,
        )
        self.any: Any = exceptions.BotoCoreError


def _again(read: Callable[[], T], *, broken: tuple[type[Exception], ...]) -> T:
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(*broken):
            return read()
    return read()


def _client() -> tuple[Any, _Failures]:
    try:
        import boto3  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]
        from botocore.config import Config  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            "data.source: s3:// needs the package boto3; install drumline[trainer-more]"
        ) from error
    config = Config(
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        max_pool_connections=_READERS,
    )
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    # a session of its own: the library's default one keeps the keys of its first use
    session = boto3.Session(region_name=region)
    return session.client("s3", config=config), _Failures()
