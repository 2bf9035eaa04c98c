"""Safetensors in a folder: one file, or several and an index that says which tensor is where.

The folder is of this machine or of a bucket.

`weights_digest` identifies the weights of a folder by their content: the same in another place or
in other files. Every tensor counts with its name, type and shape, and with samples of its bytes:
the first, the middle and the last 4 KiB. Training changes nearly every value of a tensor, so a
release and its fine-tune differ in all samples; so little is read of 140 GB that every rank can do
it at its start. It does not protect from an edit of single values on purpose.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, cast

from safetensors import SafetensorError
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType] - any PathLike
from torch import Tensor

from drumline_contract.buckets.path import (
    AnyPath,
    BucketPath,
    make_folder,
    read_file,
    remove_file,
    write_file,
)
from drumline_contract.regular_files import open_regular
from drumline_contract.shapes.hugging_face import HuggingFaceError, read_json, unreadable
from drumline_trainer.models.hugging_face.quantized import (
    Fp8Tensor,
    Mxfp4Tensor,
    fp8_tensors,
    packed_tensors,
    unscaled,
)
from drumline_trainer.tensor_files.layout import StoredTensor, file_chunks, file_size
from drumline_trainer.tensor_files.ranges import open_tensor_file, read_header

_SAMPLE_BYTES: Final = 4096


def weights_digest(folder: AnyPath) -> str:
    """Return 16 hex digits that stand for the folder's weights.

    Raises:
        HuggingFaceError: there are no weights.
        StoreError: the storage does not answer.
    """
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
    """Return the digests of all tensors of a file, by name."""
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
    """Return the spans of a tensor's bytes that its digest covers."""
    start, stop = tensor.start, tensor.stop
    begins = sorted({start, max(start, (start + stop) // 2), max(start, stop - _SAMPLE_BYTES)})
    return [(at, min(at + _SAMPLE_BYTES, stop)) for at in begins]


def _pieces(path: AnyPath, spans: list[tuple[int, int]]) -> Iterable[bytes | memoryview]:
    if isinstance(path, BucketPath):
        filled = [span for span in spans if span[0] < span[1]]  # the library refuses empty ones
        read = iter(path.read_ranges(filled) if filled else [])
        return [next(read) if start < stop else b"" for start, stop in spans]
    with open_regular(path) as file:
        return [os.pread(file.fileno(), stop - start, start) for start, stop in spans]


_WEIGHTS_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_PICKLED_FILES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_COMPANIONS = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json"),
    *("generation_config.json", "preprocessor_config.json", "processor_config.json"),
)
"""Files that inference needs beside the weights and config.json."""
_MORE_TEMPLATES: Final = "additional_chat_templates"
"""Folder of the templates that are not the default one, a file `NAME.jinja` each."""
_TEMPLATES_OF_BUCKETS: Final = ("tool_use.jinja", "rag.jinja")
"""Names that are asked for in a bucket, whose folders are not listed."""
_MAX_COMPANION_BYTES = 256 << 20
_METADATA = {"format": "pt"}
"""Without it transformers refuses a file."""


def write_json(path: AnyPath, value: Mapping[str, Any]) -> None:
    """Write readable JSON with a line feed at the end."""
    write_file(path, (json.dumps(value, indent=2) + "\n").encode())


def copy_companions(source: AnyPath, target: AnyPath) -> None:
    """Copy tokenizer, chat templates and generation settings, and remove those of another model.

    Raises:
        HuggingFaceError: a file is not regular, or larger than any published one.
    """
    if isinstance(source, Path) and isinstance(target, Path) and _same(source, target):
        return
    templates = {*_templates_of(source), *_templates_of(target)}
    for name in (*_COMPANIONS, *sorted(templates)):
        path, copy = _below(source, name), _below(target, name)
        if not path.exists():
            # An earlier export may have left one, and readers would take it.
            remove_file(copy)
            continue
        if isinstance(path, Path) and (
            not path.is_file() or path.stat().st_size > _MAX_COMPANION_BYTES
        ):
            raise HuggingFaceError(
                f"{path}: must be a regular file of at most {_MAX_COMPANION_BYTES} bytes"
            )
        make_folder(copy.parent)
        if isinstance(path, Path) and isinstance(copy, Path):
            if not _same(path, copy):
                shutil.copyfile(path, copy)
            continue
        try:
            write_file(copy, read_file(path, limit=_MAX_COMPANION_BYTES))
        except OSError as error:
            raise unreadable(path, error) from error


def remove_more_templates(folder: AnyPath) -> None:
    """Remove the chat templates of a folder beside its default one."""
    for name in _templates_of(folder):
        remove_file(_below(folder, name))


def _templates_of(folder: AnyPath) -> list[str]:
    """Return the names of the folder's further chat templates, relative to it."""
    if isinstance(folder, Path):
        names = [path.name for path in (folder / _MORE_TEMPLATES).glob("*.jinja")]
    else:
        names = [*_TEMPLATES_OF_BUCKETS]
    return [f"{_MORE_TEMPLATES}/{name}" for name in names]


def _below(folder: AnyPath, name: str) -> AnyPath:
    for part in name.split("/"):
        folder = folder / part
    return folder


def _same(first: Path, second: Path) -> bool:
    return first.exists() and second.exists() and first.samefile(second)


class TensorFiles:
    """The tensors of a folder, opened and not yet read.

    Args:
        files: files by name.
        index: which file a tensor is read from, where several have one of its name.
    """

    def __init__(self, files: Mapping[str, Any], *, index: Mapping[str, str]) -> None:
        self._file_of = {
            name: file
            for file_name, file in files.items()
            for name in file.keys()  # noqa: SIM118 - no dict
            if index.get(name, file_name) == file_name
        }
        self._packed: dict[str, Mxfp4Tensor | Fp8Tensor] = {
            **packed_tensors(self._file_of),
            **fp8_tensors(self._file_of),
        }

    @property
    def names(self) -> set[str]:
        """Names of all tensors. A packed one has its unpacked name."""
        parts = {part for packed in self._packed.values() for part in packed.parts}
        return (self._file_of.keys() - parts) | self._packed.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape in the header."""
        if name in self._packed:
            return self._packed[name].shape
        return tuple(self._file_of[name].get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        """Return one tensor in its stored type; a packed one in a type that holds its numbers."""
        if name in self._packed:
            return self._packed[name].read_part((slice(None),) * len(self.shape(name)))
        return unscaled(self._file_of[name].get_tensor(name), name)

    def read_part(self, name: str, part: tuple[slice, ...]) -> Tensor:
        """Read a part of a tensor, and no other bytes.

        For a packed tensor, no other rows are read.
        """
        if name in self._packed:
            return self._packed[name].read_part(part)
        return unscaled(self._file_of[name].get_slice(name)[part], name)


@contextmanager
def opened(folder: AnyPath) -> Generator[TensorFiles]:
    """Open every file of the folder's index, or its only one.

    Raises:
        HuggingFaceError: a file is missing or is not safetensors.
    """
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        for name in weight_files(folder):
            try:
                files[name] = stack.enter_context(open_tensor_file(folder / name))
            except SafetensorError as error:
                raise HuggingFaceError(f"{folder / name}: {error}") from error
            except OSError as error:
                raise unreadable(folder / name, error) from error
        yield TensorFiles(files, index=_index(folder))


def weight_files(folder: AnyPath) -> list[str]:
    """Return the files of the folder's index, or the only file.

    Raises:
        HuggingFaceError: the folder or its index has no usable files.
    """
    names = sorted({*_index(folder).values()})
    if not names:
        _refuse_pickles(folder)
        return [_WEIGHTS_FILE]
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise HuggingFaceError(f"{folder / _INDEX_FILE}: {name!r} is not a file of the folder")
    return names


def _index(folder: AnyPath) -> dict[str, str]:
    """Return the file of each tensor. Empty: all tensors are in one file.

    Raises:
        HuggingFaceError: the index is malformed.
    """
    # A folder may hold both, from two exports. transformers reads the single file then.
    if (folder / _WEIGHTS_FILE).exists() or not (folder / _INDEX_FILE).exists():
        return {}
    weight_map = read_json(folder / _INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise HuggingFaceError(f"{folder / _INDEX_FILE}: weight_map is missing")
    return {name: str(file) for name, file in cast("dict[str, Any]", weight_map).items()}


def _refuse_pickles(folder: AnyPath) -> None:
    if (folder / _WEIGHTS_FILE).exists():
        return
    for name in _PICKLED_FILES:
        if (folder / name).exists():
            raise HuggingFaceError(
                f"{folder} holds {name} and no {_WEIGHTS_FILE}: a pickle can run any program when"
                " it is read; load it where you trust it with transformers, and write it again"
                " with save_pretrained"
            )


def write_tensors(
    folder: AnyPath,
    sizes: Mapping[str, int],
    tensor_of: Callable[[str], Tensor],
    *,
    max_file_bytes: int,
    goes_on: bool = False,
    print_line: Callable[[str], None] = lambda _: None,
) -> None:
    """Write the tensors in order; memory: one file, which has its name once it is whole.

    Args:
        folder: exists.
        sizes: bytes of every tensor, in the order they are asked for.
        tensor_of: gives a tensor that shares no memory with another.
        max_file_bytes: beyond it another file begins; a larger tensor has one of its own.
        goes_on: files that are there hold what would be written.
        print_line: told of every file of several.
    """
    parts = list(_parts(sizes, max_file_bytes=max_file_bytes))
    # An earlier export may have the other form, and readers would take its weights.
    remove_file(folder / (_INDEX_FILE if len(parts) == 1 else _WEIGHTS_FILE))
    weight_map: dict[str, str] = {}
    for number, names in enumerate(parts, start=1):
        file = f"model-{number:05}-of-{len(parts):05}.safetensors"
        file = _WEIGHTS_FILE if len(parts) == 1 else file
        weight_map |= dict.fromkeys(names, file)
        if goes_on and (folder / file).is_file():
            continue
        tensors = {name: tensor_of(name) for name in names}
        write_tensor_file(folder / file, tensors)
        if len(parts) > 1:
            print_line(f"{file}: {number} of {len(parts)} files")
    if len(parts) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        write_json(folder / _INDEX_FILE, index)


def write_tensor_file(path: AnyPath, tensors: Mapping[str, Tensor]) -> None:
    """Write a file of tensors, which has its name once it is whole and on the disk."""
    if isinstance(path, BucketPath):
        size = file_size(tensors, metadata=_METADATA)
        path.upload(file_chunks(tensors, metadata=_METADATA), size=size)
        return
    part = path.parent / f"{path.name}.part"
    save_file(dict(tensors), part, metadata=_METADATA)
    with part.open("rb") as written:
        os.fsync(written.fileno())
    part.replace(path)


def _parts(sizes: Mapping[str, int], *, max_file_bytes: int) -> Iterable[list[str]]:
    part: list[str] = []
    filled = 0
    for name, size in sizes.items():
        if part and filled + size > max_file_bytes:
            yield part
            part, filled = [], 0
        part.append(name)
        filled += size
    yield part
