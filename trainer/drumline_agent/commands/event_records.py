"""Step and loss from the event files of TensorBoard; pure.

A file is a sequence of records (tensorflow/core/lib/io/record_writer.h). Each record holds an
`Event` (tensorboard/compat/proto/event.proto, summary.proto):

    8 bytes  length     4 bytes  masked CRC-32C of the length     data     4 bytes  of the data

Only the fields of a step and a scalar are decoded. Records above MAX_RECORD_BYTES (images, graphs,
histograms) are skipped. The file is untrusted. A malformed record ends the reading of that file.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

HEADER_BYTES: Final = 12
TRAILER_BYTES: Final = 4
MAX_RECORD_BYTES: Final = 64 * 1024
MAX_SCALARS: Final = 64
"""Maximum number of scalars of an event."""
_CASTAGNOLI: Final = 0x82F63B78
_FLOAT: Final = 1
"""DT_FLOAT of a TensorProto."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_Field = tuple[int, int | bytes]


class EventFileError(Exception):
    """A malformed record or event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarEvent:
    """The scalars of one event."""

    step: int
    values: dict[str, float]
    """Scalars by tag."""


def record_length(header: bytes) -> int:
    """Return how many bytes of data follow a header.

    Raises:
        EventFileError: these bytes do not begin a record.
    """
    length, crc = struct.unpack("<QI", header)
    if _masked_crc(header[:8]) != crc:
        raise EventFileError("no record begins here")
    return length


def scalar_event(data: bytes) -> ScalarEvent | None:
    """Decode the event in a record. None: it has no scalar.

    Raises:
        EventFileError: it is malformed.
    """
    step, values = 0, dict[str, float]()
    for number, value in _fields(data):
        # Field numbers are those of event.proto: 2 is `step`, 5 is `summary`.
        if number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            for tag, scalar in _scalars(value):
                if len(values) < MAX_SCALARS:
                    values[tag] = scalar
    return ScalarEvent(step=step, values=values) if values and 0 <= step < 1 << 53 else None


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    for number, value in _fields(summary):
        # summary.proto: 1 is `value`, with 1 `tag`, 2 `simple_value` and 8 `tensor`.
        if number != 1 or not isinstance(value, bytes):
            continue
        tag, scalar = "", math.nan
        for field, content in _fields(value):
            if field == 1 and isinstance(content, bytes):
                tag = content.decode(errors="replace")
            elif field == 2 and isinstance(content, bytes) and len(content) == 4:
                (scalar,) = struct.unpack("<f", content)
            elif field == 8 and isinstance(content, bytes):
                scalar = _scalar_of_tensor(content)
        if tag and math.isfinite(scalar):
            yield tag, scalar


def _scalar_of_tensor(tensor: bytes) -> float:
    """Decode a TensorProto with one float, in its content or its float_val. NaN: another type."""
    kind, content = 0, b""
    for number, value in _fields(tensor):
        # tensor.proto: 1 is `dtype`, 4 `tensor_content`, 5 `float_val`.
        if number == 1 and isinstance(value, int):
            kind = value
        elif number in {4, 5} and isinstance(value, bytes):
            content = value
    return struct.unpack("<f", content)[0] if kind == _FLOAT and len(content) == 4 else math.nan


def _fields(message: bytes) -> Iterator[_Field]:
    """Yield number and value of each field. Values of fixed size are bytes.

    Raises:
        EventFileError: the message is malformed.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in {_FIXED64, _FIXED32}:
            size = 8 if kind == _FIXED64 else 4
        else:
            raise EventFileError(f"a field of kind {kind}")
        if at + size > len(message):
            raise EventFileError("a field is longer than its message")
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    # 64 bits need at most ten groups of seven.
    for index in range(10):
        if at + index >= len(message):
            break
        byte = message[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise EventFileError("a number without an end")


def _masked_crc(data: bytes) -> int:
    # TensorFlow masks the checksum, so that a CRC of data with CRCs stays meaningful.
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ _CASTAGNOLI if byte & 1 else byte >> 1
    return byte


_TABLE: Final = tuple(map(_entry, range(256)))
