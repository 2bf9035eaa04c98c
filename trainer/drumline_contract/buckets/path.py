"""A path in a bucket with the operations of a local path.

A reader of a model's folder needs little: whether a file exists, and its bytes. `AnyPath` offers
both. A lost store or one that rejects a request raises `StoreError`, which is not an OSError. It
does not tell whether the file exists, so a reader must not treat the file as missing.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from drumline_contract import BUCKET_SCHEMES, HUB_SCHEME, checked_bucket
from drumline_contract.buckets.apart import answer_apart
from drumline_contract.buckets.failures import BucketError, StoreError
from drumline_contract.buckets.hub import fetched
from drumline_contract.buckets.objects import ObjectBucket
from drumline_contract.regular_files import read_regular

_READER: Final = "drumline_contract.buckets.path"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPath:
    """An object, or a prefix that is used like a folder. All methods raise StoreError."""

    bucket: ObjectBucket
    key: str
    """Behind the bucket's own prefix, if it has one."""

    @classmethod
    def parse(cls, url: str) -> BucketPath:
        """Parse `s3://BUCKET/KEY` or `gs://BUCKET/KEY`.

        Raises:
            ValueError: it is not such a URL.
        """
        scheme, _, rest = checked_bucket(url).partition("://")
        name, _, key = rest.partition("/")
        return cls(bucket=_asked(lambda: ObjectBucket(f"{scheme}://{name}")), key=key)

    def __str__(self) -> str:
        return f"{self.bucket.url}/{self.key}".rstrip("/")

    def __truediv__(self, name: str) -> BucketPath:
        return BucketPath(bucket=self.bucket, key=f"{self.key}/{name}".lstrip("/"))

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> BucketPath:
        """Without the last part."""
        return BucketPath(bucket=self.bucket, key=self.key.rpartition("/")[0])

    def exists(self) -> bool:
        """Return whether there is an object with this key. A prefix of keys does not count."""
        return self.size() is not None

    is_file = exists

    def size(self) -> int | None:
        """Return the object's size in bytes, or None if there is none."""
        return _asked(lambda: self.bucket.size(self.key))

    def read(self, *, limit: int) -> bytes:
        """Read a small object.

        Raises:
            OSError: it does not exist, or is larger than `limit` bytes.
            StoreError: the store fails.
        """
        # None means that the store answered and has no such object.
        stored = _asked(lambda: self.bucket.get(self.key, limit=limit))
        if stored is None:
            raise FileNotFoundError(errno.ENOENT, "no such object in the bucket", str(self))
        return stored.body

    def read_range(self, *, start: int, stop: int) -> memoryview:
        """Read the bytes `start` to `stop` (exclusive)."""
        return _asked(lambda: self.bucket.read(self.key, start=start, stop=stop))

    def read_ranges(self, spans: list[tuple[int, int]]) -> list[memoryview]:
        """Read these pieces, each from start to stop; near ones come by one request."""
        return _asked(lambda: self.bucket.read_many(self.key, spans))

    def write(self, body: bytes) -> None:
        """Make or replace a small object."""
        _asked(lambda: self.bucket.put(self.key, body))

    def upload(self, chunks: Iterator[bytes | memoryview], *, size: int) -> None:
        """Make or replace an object, which is seen once it is whole."""
        _asked(lambda: self.bucket.upload(self.key, chunks, size=size))

    def unlink(self) -> None:
        """Delete the object, if it is there."""
        _asked(lambda: self.bucket.delete(self.key))


AnyPath = Path | BucketPath


def any_path(text: str) -> AnyPath:
    """Return a local path or a bucket path. Files of the Hugging Face Hub are fetched first.

    Raises:
        ValueError: it is a URL of something else.
        StoreError: the Hub does not answer, or refuses.
    """
    if text.startswith(HUB_SCHEME):
        return fetched(text).place
    return BucketPath.parse(text) if text.startswith(BUCKET_SCHEMES) else Path(text)


def read_file(path: AnyPath, *, limit: int) -> bytes:
    """Read a small file.

    Raises:
        OSError: with a `strerror`; it is missing, unreadable or larger than `limit` bytes.
    """
    if isinstance(path, BucketPath):
        return path.read(limit=limit)
    return read_regular(path, limit=limit)


def write_file(path: AnyPath, body: bytes) -> None:
    """Make or replace a small file. Raises OSError."""
    if isinstance(path, BucketPath):
        path.write(body)
    else:
        path.write_bytes(body)


def remove_file(path: AnyPath) -> None:
    """Remove a file if it is there.

    Raises:
        OSError: it is there and cannot be removed.
    """
    if isinstance(path, BucketPath):
        path.unlink()
    else:
        path.unlink(missing_ok=True)


def make_folder(path: AnyPath) -> None:
    """Make a folder and its parents if they are missing; a bucket needs none.

    Raises:
        OSError: it cannot be made.
    """
    if isinstance(path, Path):
        path.mkdir(parents=True, exist_ok=True)


def read_apart(url: str, *, limit: int) -> bytes:
    """Do `read_file` of a bucket in a process of its own.

    The library's threads do not live on in a forked process, and its calls never return there: who
    forks ranks must not have called it. `write_to_output` is that process.

    Raises:
        FileNotFoundError, StoreError.
    """
    return answer_apart(_READER, url, str(limit))


def _asked(ask: Callable[[], T]) -> T:
    try:
        return ask()
    except BucketError as error:
        if error.errno == errno.EFBIG:  # it says something about the file
            raise OSError(errno.EFBIG, error.strerror) from None
        raise StoreError(str(error), may_come_back=error.errno == errno.EREMOTEIO) from None


def write_to_output(url: str, limit: str) -> int:
    """Write an object to standard output. Returns an exit code: 0, or the kind of error (`errno`).

    An error is one line on standard error.
    """
    try:
        body = BucketPath.parse(url).read(limit=int(limit))
    except StoreError as error:
        sys.stderr.write(f"{error}\n")
        # The exit code carries the kind of the error to `read_apart`.
        return errno.EREMOTEIO if error.may_come_back else errno.EINVAL
    except OSError as error:
        sys.stderr.write(f"{error.strerror}\n")
        return error.errno or errno.EIO
    sys.stdout.buffer.write(body)
    return 0


if __name__ == "__main__":
    sys.exit(write_to_output(*sys.argv[1:]))
