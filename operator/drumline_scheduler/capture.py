"""A capture: the arguments and the decisions of one cycle as a versioned JSON document.

A capture records a decision that needs an explanation. Elsewhere, the same engine replays it and
decides the same. So the document holds every field of every value, floats to the last bit, and
nothing else. `decode(encode(x)) == x`, and equal captures have equal bytes, whatever the order in
their sets and mappings.

Fields that were added after a document was written get their defaults. A document of another
version is rejected.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.decisions import Decisions, GangFault
from drumline_scheduler.model import Gang, Policy, Snapshot

KIND: Final = "SchedulingCapture"
VERSION: Final = 1
MAX_BYTES: Final = 256 * 1024 * 1024
"""Enough for some 100,000 nodes and jobs."""


class CaptureError(ValueError):
    """A document that is not a capture.

    Attributes:
        path: the invalid field, such as `capture.pending[0].nodes`; empty if no field is invalid.
        byte: offset at which the document is not JSON; None if all of it is.
    """

    def __init__(self, problem: str, *, path: str = "", byte: int | None = None) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        self.byte = byte


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """The arguments of one `decide` and what it returned."""

    snapshot: Snapshot
    pending: tuple[Gang, ...]
    policy: Policy
    now: float
    decisions: Decisions
    set_aside: tuple[GangFault, ...] = ()
    """Gangs that this cycle did not try, because they raised in an earlier one."""
    try_budget: int | None = None
    """Units of a cycle for the waiting gangs of one namespace; None: no limit."""
    deferred: tuple[str, ...] = ()
    """Uids of gangs that earlier cycles did not try."""
    put_off: tuple[str, ...] = ()
    """Uids of gangs for which the time of earlier cycles did not suffice."""
    passed: frozenset[str] = frozenset()
    """Uids of gangs that held no other gang back, under `Strict`."""
    known: frozenset[str] = frozenset()
    """Uids of gangs that were tried in an earlier cycle, under `Strict`."""
    program: str = ""
    """The version of Drumline that decided."""

    @property
    def cycle(self) -> CycleInput:
        """The arguments of `decide`."""
        return CycleInput(
            snapshot=self.snapshot,
            pending=self.pending,
            policy=self.policy,
            now=self.now,
            set_aside=self.set_aside,
            try_budget=self.try_budget,
            deferred=self.deferred,
            put_off=self.put_off,
            passed=self.passed,
            known=self.known,
            late_from=self.decisions.late_at,
        )


class _Head(msgspec.Struct):
    """The fields that every version of the document has."""

    kind: str = ""
    version: int = 0


class _Document(msgspec.Struct):
    """The whole document."""

    kind: str
    version: int
    capture: Capture


_HEAD: Final = msgspec.json.Decoder(_Head)
_DOCUMENT: Final = msgspec.json.Decoder(_Document)


def encode(capture: Capture) -> bytes:
    """Return the document of a capture, one value on each line, so that documents can be diffed."""
    document = _Document(kind=KIND, version=VERSION, capture=capture)
    plain: object = msgspec.to_builtins(document, str_keys=True, order="deterministic")
    return msgspec.json.format(msgspec.json.encode(plain), indent=1) + b"\n"


def decode(document: bytes) -> Capture:
    """Return the capture in a document.

    Raises:
        CaptureError: the document is too long, not JSON, or of another kind or version. Or a field
            is missing, of the wrong type, or has a value that no snapshot can have.
    """
    if len(document) > MAX_BYTES:
        raise CaptureError(f"longer than {MAX_BYTES >> 20} MiB")
    try:
        # Kind and version first: another version may have other fields.
        head = _HEAD.decode(document)
        if head.kind != KIND:
            raise CaptureError(f"{head.kind!r} is not {KIND}", path="kind")
        if head.version != VERSION:
            raise CaptureError(f"{head.version} is unknown, want {VERSION}", path="version")
        return _DOCUMENT.decode(document).capture
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _capture_error(str(error)) from None


def _capture_error(problem: str) -> CaptureError:
    """Convert a message of msgspec.

    It is `what - at `$.path`` for a value, and `what (byte n)` for invalid JSON.
    """
    what, at_path, where = problem.rpartition(" - at `$.")
    if at_path:
        return CaptureError(what, path=where.rstrip("`"))
    byte = re.search(r"\(byte (\d+)\)$", problem)
    return CaptureError(problem, byte=int(byte[1]) if byte else None)
