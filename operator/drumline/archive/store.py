"""The archive's storage: a folder, or a bucket of S3, GCS or Azure, by the library obstore.

A put is atomic: a reader sees the whole document or the one before it (a file is renamed into its
place, an object is one request).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore, from_url

# it is there for type checkers only
if TYPE_CHECKING:
    from obstore import ObjectMeta

SCHEMES: Final = ("file", "s3", "gs", "az")
FORMS: Final = "file:///FOLDER, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"
READS_AT_ONCE: Final = 32


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
            raise ArchiveError(f"{url!r} is no archive: write {FORMS}")
        try:
            if scheme == "file":
                return cls(from_url(url, mkdir=create), name=url)
            return cls(from_url(url), name=url)
        except (BaseError, OSError, ValueError) as error:
            raise ArchiveError(
                f"the archive {url} cannot be opened: {_first_line(error)}"
            ) from None

    async def put(self, path: str, body: bytes) -> None:
        """Write a file, whole or not at all.

        Raises:
            ArchiveError: it was not written.
        """
        try:
            await obstore.put_async(self._store, path, body)
        except (BaseError, OSError) as error:
            raise self._refused("write", path, error) from None

    async def get(self, path: str) -> bytes:
        """The content of a file.

        Raises:
            NotArchived: there is none.
            ArchiveError: it cannot be read.
        """
        try:
            answer = await obstore.get_async(self._store, path)
            return bytes(await answer.bytes_async())
        except FileNotFoundError:
            raise NotArchived(f"there is no {path} in the archive {self._name}") from None
        except (BaseError, OSError) as error:
            raise self._refused("read", path, error) from None

    async def get_all(self, paths: Sequence[str]) -> list[bytes]:
        """The contents of files, in their order.

        Raises:
            ArchiveError: one of them cannot be read.
        """
        slots = asyncio.Semaphore(READS_AT_ONCE)

        async def read(path: str) -> bytes:
            async with slots:
                return await self.get(path)

        return list(await asyncio.gather(*map(read, paths)))

    async def list(self, prefix: str) -> list[StoredFile]:
        """The files below a prefix that ends with `/`.

        Raises:
            ArchiveError: they cannot be listed.
        """
        try:
            return [
                StoredFile(path=each["path"], modified_at=each["last_modified"])
                async for chunk in _chunks(self._store, prefix)
                for each in chunk
            ]
        except (BaseError, OSError) as error:
            raise self._refused("list", prefix, error) from None

    async def delete(self, paths: Sequence[str]) -> None:
        """Delete files; those that are not there are no error.

        Raises:
            ArchiveError: one was not deleted.
        """
        for path in paths:
            try:
                await obstore.delete_async(self._store, path)
            except FileNotFoundError:
                continue
            except (BaseError, OSError) as error:
                raise self._refused("delete", path, error) from None

    def _refused(self, what: str, path: str, error: Exception) -> ArchiveError:
        return ArchiveError(
            f"cannot {what} {path} in the archive {self._name}: {_first_line(error)}"
        )


def _chunks(store: ObjectStore, prefix: str) -> AsyncIterable[Sequence[ObjectMeta]]:
    # One of the overloads names a class of a package that is not installed.
    return obstore.list(  # pyright: ignore[reportUnknownMemberType] - see above
        store, prefix, chunk_size=1000
    )


def _first_line(error: Exception) -> str:
    """Without the debug dump that the library appends."""
    return str(error).split("\n", 1)[0][:500]
