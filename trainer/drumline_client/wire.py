"""Define the messages between a training script and its pod's agent: a line of JSON each.

Both ends import this. A line is at most MAX_LINE_BYTES long, which is checked before it is parsed;
unknown messages (`None`) and unknown fields are ignored, so either end may be the newer one.

How all ranks save at the same step without a collective of ours: a two-phase commit over the
boundaries, the calls of `should_save`, which all ranks make with the same increasing steps.

    leader                          each rank
    propose(id, step 42)  ->        accepted: no boundary >= 42 was answered yet; the rank waits at
                                    its first such boundary for the outcome
                                    passed: too late; the leader withdraws and names a later step
    agreed(id)            ->        only after all have accepted: `should_save` is True there

Needs Python 3.9 and the standard library.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Final, Union, cast

VERSION: Final = 1
MAX_LINE_BYTES: Final = 4096
MAX_TEXT: Final = 2048
"""Maximum number of characters of a path or a reason."""
MAX_NUMBER: Final = 2**53
"""Maximum integer: the largest that every JSON reader keeps exactly."""


class WireError(ValueError):
    """The line is not a message: too long, not a JSON object, or a field of a wrong type."""


# From a rank.


@dataclass(frozen=True)
class Hello:
    """The first line of a connection."""

    t: ClassVar[str] = "hello"
    v: int
    pid: int
    rank: int
    local_rank: int
    world_size: int
    answered: int = -1
    """Newest answered boundary. Above -1 if the rank connects again."""
    client: str = ""
    """Version of the client, for messages."""


@dataclass(frozen=True)
class StepReport:
    """Newest state of a rank, sent at most once per `Welcome.report_seconds`."""

    t: ClassVar[str] = "report"
    at: float
    """CLOCK_MONOTONIC of the training thread's last call, comparable within the machine. If it is
    older than `report_seconds` while reports arrive, the training thread is silent."""
    phase: str
    saves: bool
    """True if the script calls `should_save`, so that it can save on request."""
    step: int | None = None
    """Newest finished optimizer step."""
    tokens: int = 0
    """Counted by this rank since it joined."""
    loss: float | None = None
    total_steps: int | None = None
    restored_step: int | None = None
    """Step of the snapshot that this process restored."""
    not_finite: str = ""
    """The loss if it is nan or inf, which no number on the wire can be."""


@dataclass(frozen=True)
class ProposalAccepted:
    """The rank has answered no boundary at or beyond the step, and waits there for the outcome."""

    t: ClassVar[str] = "accepted"
    id: str


@dataclass(frozen=True)
class ProposalPassed:
    """The step comes too late."""

    t: ClassVar[str] = "passed"
    id: str
    answered: int
    """Newest boundary that was answered with no."""


@dataclass(frozen=True)
class ProposalMissed:
    """An accepted proposal had no outcome within HOLD_SECONDS, so the answer was no."""

    t: ClassVar[str] = "missed"
    id: str


@dataclass(frozen=True)
class PartBegun:
    """This rank writes its part of the checkpoint of a step in the background."""

    t: ClassVar[str] = "saving"
    step: int


@dataclass(frozen=True)
class PartSaved:
    """This rank's part of the checkpoint of a step is written, or could not be."""

    t: ClassVar[str] = "saved"
    step: int
    path: str = ""
    error: str = ""


@dataclass(frozen=True)
class SnapshotWritten:
    """A snapshot of this rank is complete in the pod's memory (`snapshot_file`)."""

    t: ClassVar[str] = "snapshot"
    step: int
    bytes: int
    """Size of the whole file, in bytes."""
    sha256: str
    """SHA-256 of the file's body, as in its header."""
    seconds: float
    """Seconds for which training paused for it."""


@dataclass(frozen=True)
class RestoreFailed:
    """The snapshot of a step cannot be used; the process ends with an error."""

    t: ClassVar[str] = "unrestored"
    step: int
    error: str


@dataclass(frozen=True)
class WorkDone:
    """The rank's work is complete, so the following exit is intended."""

    t: ClassVar[str] = "done"


# From the agent.


@dataclass(frozen=True)
class Welcome:
    """Answer to `Hello`."""

    t: ClassVar[str] = "welcome"
    v: int
    job: str = ""
    namespace: str = ""
    generation: int = 0
    attempt: int = 0
    restarts: int = 0
    """Attempts of this job before this one, of all generations."""
    previous_world_size: int | None = None
    """World size of the previous attempt. None for the first."""
    checkpoint_step: int | None = None
    """Newest checkpoint that the job reported as complete, if the agent knows one."""
    checkpoint_path: str = ""
    report_seconds: float = 0.5


@dataclass(frozen=True)
class JoinRefused:
    """The agent rejects this rank: another version, or the rank has already joined."""

    t: ClassVar[str] = "refused"
    reason: str


@dataclass(frozen=True)
class SaveProposal:
    """Save at the first boundary at or beyond a step, after this is agreed."""

    t: ClassVar[str] = "propose"
    id: str
    step: int
    leave: bool = False
    """True if the ranks are stopped after the checkpoint is complete."""
    reason: str = ""
    deadline: float | None = None
    """Seconds since 1970 until which a save is useful."""


@dataclass(frozen=True)
class SaveAgreed:
    """All ranks have accepted. This is final."""

    t: ClassVar[str] = "agreed"
    id: str


@dataclass(frozen=True)
class SaveWithdrawn:
    """The proposal is dropped."""

    t: ClassVar[str] = "withdrawn"
    id: str


ClientMessage = Union[
    Hello,
    StepReport,
    ProposalAccepted,
    ProposalPassed,
    ProposalMissed,
    PartBegun,
    PartSaved,
    SnapshotWritten,
    RestoreFailed,
    WorkDone,
]
AgentMessage = Union[Welcome, JoinRefused, SaveProposal, SaveAgreed, SaveWithdrawn]
Message = Union[ClientMessage, AgentMessage]

_FITS: Final[Mapping[str, Callable[[Any], bool]]] = {
    # type, not isinstance: JSON's true would otherwise pass as 1.
    "int": lambda value: type(value) is int and abs(value) <= MAX_NUMBER,
    "float": lambda value: type(value) in (int, float) and abs(value) <= MAX_NUMBER,  # nor NaN
    "bool": lambda value: isinstance(value, bool),
    "str": lambda value: isinstance(value, str) and len(value) <= MAX_TEXT,
}
# The tag `t` selects the class. A peer of another version can send unknown tags.
_FROM_CLIENT: dict[str, type[Any]] = {kind.t: kind for kind in ClientMessage.__args__}
_FROM_AGENT: dict[str, type[Any]] = {kind.t: kind for kind in AgentMessage.__args__}


def encode(message: Message) -> bytes:
    """Return one line with its newline. Texts are cut to MAX_TEXT, non-finite numbers are omitted.

    Raises:
        WireError: the line is longer than MAX_LINE_BYTES.
    """
    whole = {name: _sendable(value) for name, value in asdict(message).items()}
    # Absent fields keep their defaults, so an older peer reads messages of a newer one.
    whole = {name: value for name, value in whole.items() if value is not None}
    # JSON escapes line breaks, so a newline ends exactly one message.
    line = json.dumps({"t": message.t, **whole}, separators=(",", ":")).encode() + b"\n"
    # The reader drops a connection with a longer line, so fail here, where the cause is known.
    if len(line) > MAX_LINE_BYTES:
        raise WireError(f"a message of {len(line)} bytes exceeds the maximum of {MAX_LINE_BYTES}")
    return line


def decode_client_message(line: bytes) -> ClientMessage | None:
    """Parse a rank's line. Return None for a message of a newer client.

    Raises:
        WireError: the line is invalid.
    """
    return _decode(line, _FROM_CLIENT)


def decode_agent_message(line: bytes) -> AgentMessage | None:
    """Parse an agent's line. Return None for a message of a newer agent.

    Raises:
        WireError: the line is invalid.
    """
    return _decode(line, _FROM_AGENT)


def _sendable(value: Any) -> Any:
    if isinstance(value, str):
        return value[:MAX_TEXT]
    # JSON has no NaN or infinity. `not_finite` carries them as text.
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _decode(line: bytes, kinds: dict[str, type[Any]]) -> Any:
    # The bound holds before the parser sees the line.
    if len(line) > MAX_LINE_BYTES:
        raise WireError(f"a line of more than {MAX_LINE_BYTES} bytes")
    try:
        decoded: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError(f"no JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise WireError("no JSON object")
    whole = cast("dict[str, Any]", decoded)
    kind = kinds.get(str(whole.get("t")))
    # Ignore the message: newer peers may send kinds that this version does not need.
    if kind is None:
        return None
    # Unknown fields are ignored, for the same reason.
    values = {
        field.name: _checked(field.name, str(field.type), whole[field.name])
        for field in fields(kind)
        if field.name in whole
    }
    try:
        return kind(**values)
    # A missing field without a default ends here.
    except TypeError as error:
        raise WireError(f"{kind.t}: {error}") from error


def _checked(name: str, kind: str, value: Any) -> Any:
    """Return a field's value after checking its type and bounds.

    Raises:
        WireError: the type or the value is invalid.
    """
    # Annotations are texts (`int | None`), because Python 3.9 cannot evaluate them.
    if value is None and kind.endswith(" | None"):
        return None
    kind = kind.split(" | ", 1)[0]
    if not _FITS[kind](value):
        raise WireError(f"{name}: must be {kind}")
    return value
