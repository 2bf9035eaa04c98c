"""The objects below a prefix of a bucket, by the library obstore.

One library speaks to S3 and to GCS in their own protocols, puts with conditions, uploads in parts
and reads ranges, without the interpreter's lock. Credentials come from where the clouds' own tools
leave them in pods: the environment, a role of the service account, the node. They are in no
message, nor is what a store answers but its code.

Only the library's blocking calls are used: see `drumline_addons.archive.store` for why.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import Any, Final
from urllib.parse import urlsplit

from drumline_contract import BUCKET_VARIABLES, checked_bucket
from drumline_contract.buckets.failures import BucketError, bucket_error

RETRIES: Final = 10
"""Retries of one request, with growing pauses. Covers an overloaded (503 SlowDown) or lost store.
"""
_RETRY_SECONDS: Final = 120
_REQUEST_SECONDS: Final = 120
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_PARTS_AT_ONCE: Final = 8
_PART_BYTES: Final = 8 << 20
_PARTS: Final = 9_000
"""S3 takes at most 10,000 parts of one object."""

Version = Mapping[str, Any]
"""Version of an object. A conditional put names the version that it replaces."""


class ConflictError(Exception):
    """The object is not the one that the condition names; nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """A small object."""

    body: bytes
    version: Version


class ObjectBucket:
    """The objects below a prefix.

    All methods raise BucketError where the store refuses or is not there.

    Args:
        url: s3://BUCKET/PREFIX or gs://BUCKET/PREFIX.
        retries: retries of a request.
        request_seconds: time limit of a request.
    """

    def __init__(
        self, url: str, *, retries: int = RETRIES, request_seconds: float = _REQUEST_SECONDS
    ) -> None:
        """Open it; no request is made.

        Raises:
            ValueError: the URL is none of a bucket.
            BucketError: the library is not installed, or refuses the environment.
        """
        self.url = checked_bucket(url)
        try:
            self._library: Any = importlib.import_module("obstore")  # optional
            stores: Any = importlib.import_module("obstore.store")
            self._errors: Any = importlib.import_module("obstore.exceptions")
        except ImportError as error:
            raise BucketError.about(
                "buckets need the package obstore; install drumline[trainer-more]", what=url
            ) from error
        # The library ends the process for some invalid values, so check them first.
        if url.startswith("s3://"):
            _check_environment(os.environ, url=url)
        try:
            self._store: Any = stores.from_url(
                url,
                client_options=_client_options(os.environ, request_seconds=request_seconds),
                # Retries are bounded in number and in time, so that a lost store becomes an error.
                retry_config={
                    "max_retries": retries,
                    "retry_timeout": timedelta(seconds=_RETRY_SECONDS),
                },
            )
        except (self._errors.BaseError, ValueError) as error:
            raise bucket_error(error, what=f"cannot open {url}") from None

    def get(self, key: str, *, limit: int) -> StoredObject | None:
        """Read a small object. None: it does not exist.

        Raises:
            BucketError: the store fails, or the object is larger than `limit` bytes.
        """
        # The size is known before the body is read, so a large object costs no memory.
        try:
            answer = self._library.get(self._store, key)
            meta = answer.meta
            if meta["size"] > limit:
                raise BucketError.about(
                    f"larger than {limit} bytes", errno.EFBIG, what=f"cannot read {self.url}/{key}"
                )
            body = bytes(answer.bytes())
        # A missing bucket is an error of the settings, not a missing object.
        except FileNotFoundError as error:
            self._refuse_missing_bucket("read", key, error)
            return None
        except (ValueError, self._errors.BaseError) as error:
            raise self._named("read", key, error) from None
        return StoredObject(body=body, version=_version(meta))

    def put(self, key: str, body: bytes) -> None:
        """Write a small object, whatever there was."""
        self._call("write", key, lambda: self._library.put(self._store, key, body))

    def put_if(self, key: str, body: bytes, *, version: Version | None) -> None:
        """Write a small object if it is still of this version; None: if there is none.

        Args:
            key: key below the prefix.
            body: content.
            version: version that the object must have.

        Raises:
            ConflictError: it is not; nothing was written.
            BucketError: whether it was written is not known.
        """
        # The store compares and writes in one request, which excludes other writers.
        mode = "create" if version is None else dict(version)
        try:
            # Exceptions of the condition pass through `_call` unchanged.
            self._call("write", key, lambda: self._library.put(self._store, key, body, mode=mode))
        except (self._errors.AlreadyExistsError, self._errors.PreconditionError):
            raise ConflictError from None

    def upload(self, key: str, chunks: Iterator[bytes | memoryview], *, size: int) -> None:
        """Write an object of this size in parts, several at once; what `chunks` raises ends it.

        Memory: a few parts. Nothing is seen before the last one; what an error leaves is removed.

        Args:
            key: key below the prefix.
            chunks: content.
            size: size in bytes.
        """
        # The parts grow with the object, since the number of parts is limited.
        part = max(_PART_BYTES, -(-size // _PARTS))
        options = {"chunk_size": part, "max_concurrency": _PARTS_AT_ONCE}
        try:
            self._call("write", key, lambda: self._library.put(self._store, key, chunks, **options))
        except BucketError:
            # A retried last request finds the upload complete and fails.
            if self.size(key) != size:  # else only the reply to the last request was lost
                raise

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes. None: it does not exist.

        Raises:
            BucketError: the store fails.
        """
        try:
            return self._library.head(self._store, key)["size"]
        except FileNotFoundError as error:
            self._refuse_missing_bucket("read", key, error)
            return None
        except (ValueError, self._errors.BaseError) as error:
            raise self._named("read", key, self._with_code(key, error)) from None

    def read(self, key: str, *, start: int, stop: int) -> memoryview:
        """Read the bytes `start` to `stop` (exclusive) of an object.

        Args:
            key: key below the prefix.
            start: first byte.
            stop: byte after the last one.
        """
        return memoryview(
            self._call(
                "read",
                key,
                lambda: self._library.get_range(self._store, key, start=start, end=stop),
            )
        )

    def read_many(self, key: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Read spans (start, stop) of an object. Neighbouring spans share one request."""
        # The library merges ranges that lie close together.
        starts, stops = [start for start, _ in spans], [stop for _, stop in spans]
        pieces = self._call(
            "read",
            key,
            lambda: self._library.get_ranges(self._store, key, starts=starts, ends=stops),
        )
        return [memoryview(piece) for piece in pieces]

    def delete(self, key: str) -> None:
        """Delete an object, if it is there."""
        try:
            self._call("delete", key, lambda: self._library.delete(self._store, key))
        except BucketError as error:
            # Deleting twice is valid: another process may have been first.
            if error.errno != errno.ENOENT:
                raise

    def places(self) -> list[str]:
        """List the first path components of the keys that have more than one component."""
        answer = self._call("list", "", lambda: self._library.list_with_delimiter(self._store))
        return [str(place).rstrip("/") for place in answer["common_prefixes"]]

    def times(self, place: str, *, most: int) -> dict[str, datetime]:
        """Return the modification times of at most `most` objects below `place/`, by key."""

        def listed() -> dict[str, datetime]:
            # Times come in chunks of 1000 keys, the limit of S3's listing.
            chunks = self._library.list(self._store, prefix=place, chunk_size=1000)
            objects = islice(chain.from_iterable(chunks), most)
            return {str(each["path"]): each["last_modified"] for each in objects}

        return self._call("list", f"{place}/", listed)

    def sizes(self, place: str) -> dict[str, int]:
        """Return the bytes of objects below `place/` by the rest of their keys; "" is all."""

        def listed() -> dict[str, int]:
            chunks = self._library.list(self._store, prefix=place or None, chunk_size=1000)
            return {
                str(each["path"]).removeprefix(f"{place}/"): each["size"]
                for each in chain.from_iterable(chunks)
            }

        return self._call("list", place, listed)

    def delete_place(self, place: str) -> None:
        """Delete every object below `place/`."""

        def delete() -> None:
            # Each chunk of the listing is deleted in one request.
            for listed in self._library.list(self._store, prefix=place, chunk_size=1000):
                self._library.delete(self._store, [each["path"] for each in listed])

        self._call("delete", f"{place}/", delete)

    def _call(self, what: str, key: str, work: Any) -> Any:
        try:
            return work()
        # Conditions are results, not failures.
        except (self._errors.AlreadyExistsError, self._errors.PreconditionError):
            raise
        except (FileNotFoundError, ValueError, self._errors.BaseError) as error:
            raise self._named(what, key, error) from None

    def _with_code(self, key: str, error: Exception) -> Exception:
        """Find out by a GET why a HEAD was refused: only the GET's answer has a body."""
        # A 4xx answer to HEAD has no body, so its code is unknown.
        if "status code: 4" not in str(error):
            return error
        try:
            self._library.get(self._store, key)
        except (FileNotFoundError, ValueError, self._errors.BaseError) as answered:
            return answered
        return error

    def _refuse_missing_bucket(self, what: str, key: str, error: Exception) -> None:
        if "NoSuchBucket" in str(error):
            raise self._named(what, key, error) from None

    def _named(self, what: str, key: str, error: Exception) -> BucketError:
        return bucket_error(error, what=f"cannot {what} {self.url}/{key}".rstrip("/"))


def _version(meta: Mapping[str, Any]) -> Version:
    """Return what names a version of an object: S3 has its ETag, GCS its generation."""
    # S3 compares ETags and GCS generations. The library takes the pair.
    return {key: meta[key] for key in ("e_tag", "version") if meta.get(key)}


def _check_environment(environ: Mapping[str, str], *, url: str) -> None:
    """Raise BucketError for what the library's first request would end the process over."""
    for name in (*(each for each in BUCKET_VARIABLES if each.startswith("AWS_")), *_ENDPOINTS):
        value = environ.get(name, "")
        if not (value.isascii() and value.isprintable()):  # as with the line's end of a file
            problem = f"{name} has a line break, or another character that is none of ASCII's"
        elif value and name in _ENDPOINTS and not _is_endpoint(value):
            problem = f"{name} must be https:// or http:// and a host, which may have a port"
        else:
            continue
        raise BucketError.about(problem, what=f"cannot open {url}")


def _is_endpoint(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    is_host = parts.hostname is not None and " " not in url and port != 0
    return url.startswith(("https://", "http://")) and is_host


def _client_options(environ: Mapping[str, str], *, request_seconds: float) -> dict[str, Any]:
    """Build the client's options. Plain HTTP is allowed only if the endpoint variable has it."""
    endpoint = next((value for name in _ENDPOINTS if (value := environ.get(name))), "")
    # Plain HTTP must be requested explicitly, since credentials travel in the request.
    return {
        "timeout": timedelta(seconds=request_seconds),
        "allow_http": bool(re.match("http://", endpoint)),
    }
