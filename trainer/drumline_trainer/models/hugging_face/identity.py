"""Which weights a folder holds, by their content: the same in another place or in other files.

Every tensor counts with its name, type and shape, and with samples of its bytes: the first, the
middle and the last 4 KiB. Training changes nearly every value of a tensor, so a release and its
fine-tune differ in all samples; so little is read of 140 GB that every rank can do it at its start.
It does not protect from an edit of single values on purpose.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterable
from typing import Final

from drumline_trainer.buckets.path import AnyPath, BucketPath
from drumline_trainer.models.hugging_face.files import opened, weight_files
from drumline_trainer.shapes.hugging_face import unreadable
from drumline_trainer.tensor_files.layout import StoredTensor
from drumline_trainer.tensor_files.ranges import read_header

_SAMPLE_BYTES: Final = 4096


def weights_digest(folder: AnyPath) -> str:
    """16 hex digits. Raises HuggingFaceError: no weights; StoreError: no answer of the storage."""
    with opened(folder):  # whatever is no safetensors is named there
        pass
    digests: dict[str, str] = {}
    for name in weight_files(folder):
        try:
            digests |= _digests(folder / name)
        except OSError as error:
            raise unreadable(folder / name, error) from error
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()[:16]


def _digests(path: AnyPath) -> dict[str, str]:
    """Of every tensor of a file."""
    tensors = read_header(path)
    spans = {name: _spans(tensor) for name, tensor in tensors.items()}
    pieces = iter(_pieces(path, [span for each in spans.values() for span in each]))
    digests: dict[str, str] = {}
    for name, tensor in tensors.items():
        digest = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}\n".encode())
        for piece in itertools.islice(pieces, len(spans[name])):
            digest.update(piece)
        digests[name] = digest.hexdigest()
    return digests


def _spans(tensor: StoredTensor) -> list[tuple[int, int]]:
    """What counts of a tensor's bytes."""
    start, stop = tensor.start, tensor.stop
    begins = sorted({start, max(start, (start + stop) // 2), max(start, stop - _SAMPLE_BYTES)})
    return [(at, min(at + _SAMPLE_BYTES, stop)) for at in begins]


def _pieces(path: AnyPath, spans: list[tuple[int, int]]) -> Iterable[bytes | memoryview]:
    if isinstance(path, BucketPath):
        filled = [span for span in spans if span[0] < span[1]]  # the library refuses empty ones
        read = iter(path.read_ranges(filled) if filled else [])
        return [next(read) if start < stop else b"" for start, stop in spans]
    with path.open("rb") as file:
        return [os.pread(file.fileno(), stop - start, start) for start, stop in spans]
