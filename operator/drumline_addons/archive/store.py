"""The archive's storage: a folder, or a bucket of S3, GCS or Azure, by the library obstore.

A put is atomic: a reader sees the whole document or the one before it (a file is renamed into its
place, an object is one request).

The library is called from threads of ours, by its blocking calls. Those that return awaitables end
on its own threads, which reach into the interpreter after the event loop is closed: with version
0.12.1 more than half of the processes that ended soon after one were aborted (SIGABRT).
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
CALLS_AT_ONCE: Final = 32
_RETRIES: Final[RetryConfig] = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
"""Of one call to a bucket. The archiver tries again for ever, and says meanwhile what is wrong."""


class ArchiveError(Exception):
    """The archive cannot be opened, read or written; `str()` is a sentence."""


class NotArchived(ArchiveError):  # noqa: N818 - read as a sentence: raise NotArchived
    """There is no such file in the archive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file of the archive."""

    path: str
    modified_at: datetime


class ArchiveStore:
    """The files of an archive.

    Args:
        store: where they are.
        name: of the archive, for errors.
    """

    def __init__(self, store: ObjectStore, *, name: str) -> None:
        self._store = store
        self._name = name
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="archive")

    @classmethod
    def at(cls, url: str, *, create: bool = False) -> ArchiveStore:
        """The archive at a URL.

        Credentials of a bucket come from where the cloud's own tools look for them: environment
        variables, or the identity of the pod. AWS_ENDPOINT_URL names another store that speaks S3.

        Args:
            url: in one of `FORMS`.
            create: whether a folder is made where there is none.

        Raises:
            ArchiveError: there is no such store.
        """
        scheme = urlsplit(url).scheme
        if scheme not in SCHEMES:
            raise ArchiveError(f"unsupported archive URL {url!r}: want {FORMS}")
        try:
            if scheme == "file":
                return cls(from_url(url, mkdir=create), name=url)
            return cls(from_url(url, retry_config=_RETRIES), name=url)
        except (BaseError, OSError, ValueError) as error:
            raise ArchiveError(
                f"cannot open the archive {url}: {without_secrets(str(error))}"
            ) from None

    async def put(self, path: str, body: bytes) -> None:
        """Write a file, whole or not at all.

        Raises:
            ArchiveError: it was not written.
        """
        try:
            await self._call(partial(obstore.put, self._store, path, body))
        except (BaseError, OSError) as error:
            raise self._refused("write", path, error) from None

    async def get(self, path: str) -> bytes:
        """The content of a file.

        Raises:
            NotArchived: there is none.
            ArchiveError: it cannot be read.
        """
        try:
            return await self._call(lambda: bytes(obstore.get(self._store, path).bytes()))
        except FileNotFoundError:
            raise NotArchived(f"the archive {self._name} has no {path}") from None
        except (BaseError, OSError) as error:
            raise self._refused("read", path, error) from None

    async def get_all(self, paths: Sequence[str]) -> list[bytes]:
        """The contents of files, in their order.

        Raises:
            ArchiveError: one of them cannot be read.
        """
        return list(await asyncio.gather(*map(self.get, paths)))

    async def list(self, prefix: str) -> list[StoredFile]:
        """The files below a prefix that ends with `/`.

        Raises:
            ArchiveError: they cannot be listed.
        """
        try:
            return await self._call(lambda: _listed(self._store, prefix))
        except (BaseError, OSError) as error:
            raise self._refused("list", prefix, error) from None

    async def delete(self, paths: Sequence[str]) -> None:
        """Delete files; those that are not there are no error.

        Raises:
            ArchiveError: one was not deleted.
        """
        for path in paths:
            try:
                await self._call(partial(obstore.delete, self._store, path))
            except FileNotFoundError:
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
    return [
        StoredFile(path=each["path"], modified_at=each["last_modified"])
        for chunk in chunks
        for each in chunk
    ]
