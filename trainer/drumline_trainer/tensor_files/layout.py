"""The bytes of a safetensors file, written in pieces and its header read within bounds.

8 bytes little-endian header length, a JSON header with type, shape and byte range of every tensor,
then the bytes. Memory: one chunk, whatever the size of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from safetensors import SafetensorError
from torch import Tensor

DTYPES: Final = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Types by safetensors' names."""
LENGTH_BYTES: Final = 8
"""In front of the header."""
MAX_HEADER_BYTES: Final = 16 << 20
"""More than 100,000 tensors. The library takes 100 MB, which are gigabytes once they are parsed."""
CHUNK_BYTES: Final = 1 << 20
"""Digested and written at once: small enough for the processor's cache, and few calls."""
_DTYPE_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}
_DEVICE_CHUNK_BYTES: Final = 16 << 20
"""Copied from another device at once."""
_MAX_DIMENSIONS: Final = 64
"""Maximum number of dimensions, as in PyTorch."""
_METADATA: Final = "__metadata__"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Place of a tensor in a file."""

    dtype: str
    """Safetensors' name of the type."""
    shape: tuple[int, ...]
    start: int
    """Offset of the first byte from the begin of the file. `stop` is the end of the range."""
    stop: int


def dtype_name(tensor: Tensor) -> str:
    """Return safetensors' name of the tensor's type."""
    return _DTYPE_NAMES[tensor.dtype]


def file_header(
    tensors: Mapping[str, Tensor], *, metadata: Mapping[str, str] | None = None
) -> bytes:
    """Return the first bytes of a file that holds these tensors, one after another."""
    header: dict[str, object] = {} if metadata is None else {_METADATA: dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": dtype_name(tensor),
            "shape": list(tensor.shape),
            # Tensors lie back to back, as safetensors requires: no gaps, no overlaps.
            "data_offsets": [start, end],
        }
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # the format aligns the data to 8 bytes
    return len(encoded).to_bytes(LENGTH_BYTES, "little") + encoded


def file_size(tensors: Mapping[str, Tensor], *, metadata: Mapping[str, str] | None = None) -> int:
    """Return the size in bytes of the file that holds these tensors."""
    held = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return len(file_header(tensors, metadata=metadata)) + held


def file_chunks(
    tensors: Mapping[str, Tensor], *, metadata: Mapping[str, str] | None = None
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of the file in order."""
    yield file_header(tensors, metadata=metadata)
    for tensor in tensors.values():
        flat = as_bytes(tensor)
        # One copy from the device for each 16 MiB, then chunks of cache size.
        for start in range(0, flat.numel(), _DEVICE_CHUNK_BYTES):
            view = flat[start : start + _DEVICE_CHUNK_BYTES].cpu().numpy().data
            # The view refers to the host copy, so chunks need no second copy.
            for offset in range(0, len(view), CHUNK_BYTES):
                yield view[offset : offset + CHUNK_BYTES]


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the tensor's bytes in order, uint8 [n], without a copy if it is contiguous."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def parse_header(header: bytes, *, file_bytes: int) -> dict[str, StoredTensor]:
    """Parse the header of a file without trusting any byte.

    Args:
        header: the bytes after the length.
        file_bytes: size of the whole file.

    Raises:
        SafetensorError: it is malformed, or its tensors do not fit into the file.
    """
    data = LENGTH_BYTES + len(header)
    try:
        # Phase 1: parse. Every kind of malformed JSON ends in one error.
        raw: Any = json.loads(header)
        tensors = {
            str(name): _stored(entry, data=data) for name, entry in raw.items() if name != _METADATA
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SafetensorError(f"no header: {error!r:.200}") from None
    for name, tensor in tensors.items():
        # Phase 2: each place must lie in the file and match type and shape.
        fits = data <= tensor.start <= tensor.stop <= file_bytes
        elements, rest = divmod(tensor.stop - tensor.start, DTYPES[tensor.dtype].itemsize)
        # Bytes divided by the item size are compared, since a product of lengths could be huge.
        if not fits or rest or not _has_elements(tensor.shape, elements):
            raise SafetensorError(f"{name:.200}: its place is none of its shape in this file")
    return tensors


def _stored(entry: Any, *, data: int) -> StoredTensor:
    start, stop = entry["data_offsets"]
    dtype = str(entry["dtype"])
    if dtype not in DTYPES:
        raise ValueError(f"type {dtype:.20}")
    shape = tuple(entry["shape"])
    if len(shape) > _MAX_DIMENSIONS or any(type(each) is not int for each in (start, stop, *shape)):
        raise ValueError("a shape or a place that is none")
    return StoredTensor(dtype=dtype, shape=shape, start=data + start, stop=data + stop)


def _has_elements(shape: tuple[int, ...], elements: int) -> bool:
    """Return whether a shape has `elements` elements, without computing unbounded numbers."""
    if min(shape, default=1) <= 0:
        return min(shape) == 0 == elements
    product = 1
    for length in shape:
        product *= length
        if product > elements:
            return False
    return product == elements
