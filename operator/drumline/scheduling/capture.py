"""One cycle on paper: what it was told and what it decided, as a JSON document of one version.

A capture is written where something was decided that nobody understands, and read somewhere else:
the same engine, given the same values, has to decide the same again. So the document holds every
field of every value, floats to their last bit, and nothing else; `decode(encode(x)) == x`, and
equal captures have equal bytes, whatever the order in their sets and mappings.

Fields that were added to a value since a document was written have their defaults. A document of
another version is rejected: what its words meant then is not known here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from drumline.scheduling.decisions import Decisions
from drumline.scheduling.model import Gang, Policy, Snapshot

KIND: Final = "SchedulingCapture"
VERSION: Final = 1
MAX_BYTES: Final = 256 * 1024 * 1024
"""Some 100,000 nodes and jobs; a longer document is none of ours."""


class CaptureError(ValueError):
    """A document that is no capture.

    Attributes:
        path: the field at fault, such as `capture.pending[0].nodes`; empty where it is none.
        byte: where the document ceases to be JSON; None where it does not.
    """

    def __init__(self, problem: str, *, path: str = "", byte: int | None = None) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        self.byte = byte


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """The arguments of one `decide`, and its answer."""

    snapshot: Snapshot
    pending: tuple[Gang, ...]
    policy: Policy
    now: float
    decisions: Decisions
    program: str = ""
    """The version of Drumline that decided it."""


class _Head(msgspec.Struct):
    """What every version of the document begins with."""

    kind: str = ""
    version: int = 0


class _Document(msgspec.Struct):
    """The whole of it."""

    kind: str
    version: int
    capture: Capture


_HEAD: Final = msgspec.json.Decoder(_Head)
_DOCUMENT: Final = msgspec.json.Decoder(_Document)


def encode(capture: Capture) -> bytes:
    """The document of a capture, a value a line: two of them can be compared by eye."""
    document = _Document(kind=KIND, version=VERSION, capture=capture)
    plain: object = msgspec.to_builtins(document, str_keys=True, order="deterministic")
    return msgspec.json.format(msgspec.json.encode(plain), indent=1) + b"\n"


def decode(document: bytes) -> Capture:
    """The capture in a document.

    Raises:
        CaptureError: it is too long, not JSON, of another kind or version, or a field is missing,
            of the wrong type, or of a value that no snapshot can have.
    """
    if len(document) > MAX_BYTES:
        raise CaptureError(f"longer than {MAX_BYTES >> 20} MiB")
    try:
        head = _HEAD.decode(document)
        if head.kind != KIND:
            raise CaptureError(f"{head.kind!r} is not {KIND}", path="kind")
        if head.version != VERSION:
            raise CaptureError(f"{head.version} is not known, only {VERSION}", path="version")
        return _DOCUMENT.decode(document).capture
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _told(str(error)) from None


def _told(problem: str) -> CaptureError:
    """What msgspec says: `what - at `$.path`` of a value, `what (byte n)` of what is not JSON."""
    what, found, where = problem.rpartition(" - at `$.")
    if found:
        return CaptureError(what, path=where.rstrip("`"))
    byte = re.search(r"\(byte (\d+)\)$", problem)
    return CaptureError(problem, byte=int(byte[1]) if byte else None)
