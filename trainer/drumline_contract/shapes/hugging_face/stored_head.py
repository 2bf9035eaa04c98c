"""True if the files of a folder hold a head that is not the embedding, read without torch.

config.json may say that both are tied, and a fine-tune learned the head apart. transformers keeps
it apart from version 5 on. Only folders of this machine are looked at, and of a large matrix 64
stretches, evenly over it: a head that was learned apart differs everywhere.

A model on the Hub is downloaded for that only if the names of its tensors contain a head.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from drumline_contract.regular_files import open_regular, read_regular

_PAIRS: Final = (
    ("lm_head.weight", "model.embed_tokens.weight"),
    ("lm_head.weight", "transformer.wte.weight"),
    ("lm_head.weight", "model.language_model.embed_tokens.weight"),
    ("language_model.lm_head.weight", "language_model.model.embed_tokens.weight"),
)
"""Names of head and embedding."""
_FILE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_MAX_HEADER_BYTES: Final = 100_000_000
_STRETCHES: Final = 64
_STRETCH_BYTES: Final = 64 << 10


def head_differs(folder: Path) -> bool:
    """Return whether the files hold a head of the embedding's type and shape with other values.

    False if the files cannot be read. The reader of the weights reports that.
    """
    try:
        files = _files(folder)
        pair = _pair_in(files)
        if pair is None:
            return False
        head, embedding = (_StoredHead.of(folder / files[name], name) for name in pair)
        # Another type or shape cannot be compared byte by byte.
        return head.described == embedding.described and _differ(head, embedding)
    # Offsets may be any numbers, and a header may be nested as deep as its author likes.
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        return False
    except RecursionError:
        return False


def names_head(names: Collection[str]) -> bool:
    """Return whether a head and an embedding are among these tensors."""
    return _pair_in(names) is not None


def _pair_in(names: Collection[str]) -> tuple[str, str] | None:
    return next((pair for pair in _PAIRS if all(name in names for name in pair)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredHead:
    """A tensor in a file."""

    path: Path
    described: tuple[str, list[int]]
    """Type and shape."""
    start: int
    size: int

    @classmethod
    def of(cls, path: Path, name: str) -> _StoredHead:
        """Find a tensor by the header of its file."""
        header, begin = _header(path)
        tensor = header[name]
        start, stop = tensor["data_offsets"]
        described = (tensor["dtype"], tensor["shape"])
        return cls(path=path, described=described, start=begin + start, size=stop - start)


def _files(folder: Path) -> dict[str, str]:
    """Return the file of each tensor, by the tensor's name."""
    if (folder / _FILE).exists():
        return dict.fromkeys(_header(folder / _FILE)[0], _FILE)
    listed: dict[str, str] = json.loads(read_regular(folder / _INDEX, limit=_MAX_HEADER_BYTES))[
        "weight_map"
    ]
    return {name: Path(file).name for name, file in listed.items()}


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Read a safetensors header and the offset at which the tensors begin.

    Raises:
        ValueError: the header is too large or not JSON.
    """
    with open_regular(path) as file:
        size = int.from_bytes(file.read(8), "little")
        # The format allows 100 MB of header.
        if size > _MAX_HEADER_BYTES:
            raise ValueError(size)
        return json.loads(file.read(size)), 8 + size


def _differ(head: _StoredHead, embedding: _StoredHead) -> bool:
    # Stretches lie evenly over the tensor, so a partly trained head is found.
    apart = max(_STRETCH_BYTES, head.size // _STRETCHES)
    with open_regular(head.path) as head_file, open_regular(embedding.path) as embedding_file:
        for at in range(0, head.size, apart):
            length = min(_STRETCH_BYTES, head.size - at)
            head_file.seek(head.start + at)
            embedding_file.seek(embedding.start + at)
            if head_file.read(length) != embedding_file.read(length):
                return True
    return False
