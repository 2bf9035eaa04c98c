"""Which weights a folder holds, by their content: the same in another place or in other files.

Every tensor counts with its name, type and shape, and with samples of its bytes: the first, the
middle and the last 4 KiB. Training changes nearly every value of a tensor, so a release and its
fine-tune differ in all samples; so little is read of 140 GB that every rank can do it at its start.
It does not protect from an edit of single values on purpose.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from drumline_trainer.models.hugging_face.files import opened, weight_files
from drumline_trainer.shapes.hugging_face import HuggingFaceError

_SAMPLE_BYTES: Final = 4096


def weights_digest(folder: Path) -> str:
    """16 hex digits. Raises HuggingFaceError where the folder holds no weights."""
    with opened(folder):  # whatever is no safetensors is named there
        pass
    samples: dict[str, str] = {}
    for name in weight_files(folder):
        try:
            with (folder / name).open("rb") as file:
                samples |= dict(_samples(file))
        except OSError as error:
            raise HuggingFaceError(f"{folder / name}: {error.strerror}") from error
    return hashlib.sha256(json.dumps(sorted(samples.items())).encode()).hexdigest()[:16]


def _samples(file: BinaryIO) -> Iterator[tuple[str, str]]:
    """Of every tensor a digest. Layout: see `checkpoint.shard_file`."""
    header_bytes = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(header_bytes))
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        digest = hashlib.sha256(f"{entry['dtype']} {entry['shape']}\n".encode())
        start, stop = (8 + header_bytes + offset for offset in entry["data_offsets"])
        for at in sorted(
            {start, max(start, (start + stop) // 2), max(start, stop - _SAMPLE_BYTES)}
        ):
            file.seek(at)
            digest.update(file.read(min(_SAMPLE_BYTES, stop - at)))
        yield name, digest.hexdigest()
