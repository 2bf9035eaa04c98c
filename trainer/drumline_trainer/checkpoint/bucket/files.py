"""The files of one checkpoint in a bucket: uploaded in parts, read once.

A file is written by one upload in parts, several at once, and seen when the last one has arrived.
It is read by ranges in their order, several ahead; no byte is fetched twice, and there is never
more in memory than the ranges ahead.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from drumline_contract.buckets.failures import BucketError
from drumline_contract.buckets.objects import ObjectBucket
from drumline_contract.buckets.path import BucketPath
from drumline_trainer.checkpoint.digests import hasher
from drumline_trainer.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpointError,
    StorageError,
    is_storage_fault,
)
from drumline_trainer.checkpoint.manifest import FileRecord
from drumline_trainer.checkpoint.storage import Unchanged
from drumline_trainer.tensor_files.layout import file_chunks, file_size
from drumline_trainer.tensor_files.ranges import OpenTensorFile, open_tensor_file

_RANGE_BYTES: Final = 8 << 20
_RANGES_AHEAD: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFiles:
    """Files of one checkpoint in a bucket, committed once `index.json` names their place."""

    bucket: ObjectBucket
    place: str

    @property
    def committed_place(self) -> str:
        """Place of the committed files: the same, because a commit moves nothing."""
        return self.place

    def write(
        self, name: str, tensors: Mapping[str, Tensor], *, check: Callable[[], None]
    ) -> FileRecord:
        """See `StepFiles`."""
        digest = hasher()

        def chunks() -> Iterator[bytes | memoryview]:
            for chunk in file_chunks(tensors):
                check()
                digest.update(chunk)
                yield chunk

        # An upload's size must be known before its first byte; the digest only after its last one.
        size = file_size(tensors)
        self.bucket.upload(f"{self.place}/{name}", chunks(), size=size)
        return FileRecord(size_bytes=size, digest=digest.hexdigest())

    def write_unchanged(
        self,
        name: str,
        tensors: Mapping[str, Tensor],
        *,
        before: Unchanged | None,  # noqa: ARG002 - a bucket has no links
        check: Callable[[], None],
    ) -> FileRecord:
        """See `StepFiles`."""
        return self.write(name, tensors, check=check)

    def write_small(self, files: Mapping[str, bytes]) -> None:
        """See `StepFiles`."""
        for name, body in files.items():
            self.bucket.put(f"{self.place}/{name}", body)

    def read_small(self, name: str, *, limit: int) -> bytes:
        """See `StepFiles`. Raises StorageError where the store is lost."""
        try:
            stored = self.bucket.get(f"{self.place}/{name}", limit=limit)
        except BucketError as error:
            raise _unreadable(error) from None
        if stored is None:
            raise CorruptCheckpointError(f"{name}: missing")
        return stored.body

    def open(self, name: str) -> AbstractContextManager[OpenTensorFile]:
        """See `StepFiles`."""
        return open_tensor_file(BucketPath(bucket=self.bucket, key=f"{self.place}/{name}"))

    def chunks(self, name: str, record: FileRecord) -> Iterator[memoryview]:
        """See `StepFiles`. Raises StorageError where the store is lost."""
        try:
            size = self.bucket.size(f"{self.place}/{name}")
            # Before reading: a file that was cut off would be noticed only at its end.
            if size is None or size != record.size_bytes:
                there = "missing" if size is None else f"{size} bytes"
                raise CorruptCheckpointError(
                    f"{name}: {there}, the manifest says {record.size_bytes}"
                )
            yield from self._parts(name, size=size)
        except BucketError as error:
            raise _unreadable(error) from None

    def _parts(self, name: str, *, size: int) -> Iterator[memoryview]:
        """Yield the file's bytes in order. Ranges are read ahead."""
        readers = ThreadPoolExecutor(_RANGES_AHEAD, thread_name_prefix="checkpoint")
        ahead: deque[Future[memoryview]] = deque()
        try:
            for start in range(0, size, _RANGE_BYTES):
                stop = min(start + _RANGE_BYTES, size)
                key = f"{self.place}/{name}"
                ahead.append(readers.submit(self.bucket.read, key, start=start, stop=stop))
                # Bounds the memory: at most this many ranges wait for the reader of the file.
                if len(ahead) > _RANGES_AHEAD:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            # The caller may stop early, on damage: no request that has not begun is made for it.
            readers.shutdown(wait=False, cancel_futures=True)


def _unreadable(error: BucketError) -> CheckpointError:
    """Convert an error. A lost store is not damage, so it must not select an older checkpoint."""
    if error.errno == errno.ENOENT:
        return CorruptCheckpointError(str(error))
    return (StorageError if is_storage_fault(error) else CheckpointError)(str(error))
