"""Access the archive's storage with the library obstore: a folder, or an S3, GCS or Azure bucket.

A put is atomic: a reader sees the whole new document or the previous one. A file is renamed into
place, and an object is one request.

The library is called from our own threads with its blocking calls. Its awaitables complete on its
own threads, which access the interpreter after the event loop is closed. With version 0.12.1, more
than half of the processes that ended soon after such a call were aborted (SIGABRT).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore, from_url

from drumline_contract import without_secrets

T = TypeVar("T")
# it is there for type checkers only
if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import RetryConfig

SCHEMES: Final = ("file", "s3", "gs", "az")
FORMS: Final = "file:///FOLDER, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"
# Enough for the archiver's eight writes, and for a command that reads many documents.
CALLS_AT_ONCE: Final = 32
_RETRIES: Final[RetryConfig] = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
"""Retries of one call to a bucket. The archiver retries without limit, and reports the error
meanwhile."""


class ArchiveError(Exception):
    """The archive cannot be opened, read or written; `str()` is a sentence."""


class NotArchived(ArchiveError):  # noqa: N818 - read as a sentence: raise NotArchived
    """The archive has no such file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file of the archive."""

    path: str
    modified_at: datetime


class ArchiveStore:
    """The files of an archive.

    Args:
        store: storage of the files.
        name: name of the archive, for errors.
    """

    def __init__(self, store: ObjectStore, *, name: str) -> None:
        self._store = store
        self._name = name
        # Own threads: the default pool is also used for DNS and for files.
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="archive")

    @classmethod
    def at(cls, url: str, *, create: bool = False) -> ArchiveStore:
        """Return the archive at a URL.

        Credentials of a bucket come from the usual places of the cloud's tools: environment
        variables, or the identity of the pod. AWS_ENDPOINT_URL names another S3-compatible store.

        Args:
            url: URL in one of `FORMS`.
            create: whether to create a missing folder.

        Raises:
            ArchiveError: the store does not exist.
        """
        # The scheme is checked first, because obstore also opens memory and http stores.
        scheme = urlsplit(url).scheme
        if scheme not in SCHEMES:
            raise ArchiveError(f"unsupported archive URL {url!r}: want {FORMS}")
        try:
            if scheme == "file":
                # Only a local folder can be created. A bucket belongs to its administrator.
                return cls(from_url(url, mkdir=create), name=url)
            return cls(from_url(url, retry_config=_RETRIES), name=url)
        except (BaseError, OSError, ValueError) as error:
            raise ArchiveError(
                # An error of a cloud's client may quote a signed URL.
                f"cannot open the archive {url}: {without_secrets(str(error))}"
            ) from None

    async def put(self, path: str, body: bytes) -> None:
        """Write a file atomically.

        Raises:
            ArchiveError: the file was not written.
        """
        try:
            await self._call(partial(obstore.put, self._store, path, body))
        except (BaseError, OSError) as error:
            raise self._refused("write", path, error) from None

    async def get(self, path: str) -> bytes:
        """Return the content of a file.

        Raises:
            NotArchived: the file does not exist.
            ArchiveError: the file cannot be read.
        """
        try:
            return await self._call(lambda: bytes(obstore.get(self._store, path).bytes()))
        except FileNotFoundError:
            raise NotArchived(f"the archive {self._name} has no {path}") from None
        except (BaseError, OSError) as error:
            raise self._refused("read", path, error) from None

    async def get_all(self, paths: Sequence[str]) -> list[bytes]:
        """Return the contents of files, in their order.

        Raises:
            ArchiveError: a file cannot be read.
        """
        return list(await asyncio.gather(*map(self.get, paths)))

    async def list(self, prefix: str) -> list[StoredFile]:
        """Return the files below a prefix that ends with `/`.

        Raises:
            ArchiveError: the files cannot be listed.
        """
        try:
            return await self._call(lambda: _listed(self._store, prefix))
        except (BaseError, OSError) as error:
            raise self._refused("list", prefix, error) from None

    async def delete(self, paths: Sequence[str]) -> None:
        """Delete files. Missing files are ignored.

        Raises:
            ArchiveError: a file was not deleted.
        """
        # One by one: not all storages have a bulk delete, and prunes are rare.
        for path in paths:
            try:
                await self._call(partial(obstore.delete, self._store, path))
            except FileNotFoundError:
                # A repeated prune deletes files that an interrupted one has deleted already.
                continue
            except (BaseError, OSError) as error:
                raise self._refused("delete", path, error) from None

    async def _call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _refused(self, what: str, path: str, error: Exception) -> ArchiveError:
        return ArchiveError(
            f"cannot {what} {path} in the archive {self._name}: {without_secrets(str(error))}"
        )


def _listed(store: ObjectStore, prefix: str) -> list[StoredFile]:
    # One of the overloads names a class of a package that is not installed.
    chunks: Iterable[Sequence[ObjectMeta]] = obstore.list(  # pyright: ignore[reportUnknownMemberType] - see above
        store, prefix, chunk_size=1000
    )
    # The chunks are read in the thread: each one is a request.
    return [
        StoredFile(path=each["path"], modified_at=each["last_modified"])
        for chunk in chunks
        for each in chunk
    ]
