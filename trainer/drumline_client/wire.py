"""What a training script and its pod's agent say to each other: a line of JSON each.

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
"""Characters of a path or a reason."""
MAX_NUMBER: Final = 2**53
"""Of an integer: what every reader of JSON keeps exactly."""


class WireError(ValueError):
    """A line that is no message: too long, no JSON object, or a field of a wrong type."""


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
    """Newest boundary that was answered; more than -1 where the rank connects again."""
    client: str = ""
    """Version of the client, for messages."""


@dataclass(frozen=True)
class StepReport:
    """The newest state of a rank; sent at most once in `Welcome.report_seconds`."""

    t: ClassVar[str] = "report"
    at: float
    """CLOCK_MONOTONIC of the training thread's last call, comparable within the machine: older
    than `report_seconds` while reports arrive means that the training thread is silent."""
    phase: str
    saves: bool
    """The script asks `should_save`: it can save on request."""
    step: int | None = None
    """Newest finished optimizer step."""
    tokens: int = 0
    """Counted by this rank since it joined."""
    loss: float | None = None
    total_steps: int | None = None
    restored_step: int | None = None
    """Step of the snapshot that this process has restored."""


@dataclass(frozen=True)
class ProposalAccepted:
    """No boundary at or beyond the step was answered; the rank waits there for the outcome."""

    t: ClassVar[str] = "accepted"
    id: str


@dataclass(frozen=True)
class ProposalPassed:
    """The step comes too late."""

    t: ClassVar[str] = "passed"
    id: str
    answered: int
    """The newest boundary that was answered with no."""


@dataclass(frozen=True)
class ProposalMissed:
    """An accepted proposal had no outcome for HOLD_SECONDS at its boundary: answered with no."""

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
    """Size of the whole file."""
    sha256: str
    """Of the file's body, as in its header."""
    seconds: float
    """How long training stood still for it."""


@dataclass(frozen=True)
class RestoreFailed:
    """The snapshot of a step cannot be used; the process ends with an error."""

    t: ClassVar[str] = "unrestored"
    step: int
    error: str


@dataclass(frozen=True)
class WorkDone:
    """The rank's work is complete: the exit that follows is meant."""

    t: ClassVar[str] = "done"


# From the agent.


@dataclass(frozen=True)
class Welcome:
    """The answer to `Hello`."""

    t: ClassVar[str] = "welcome"
    v: int
    job: str = ""
    namespace: str = ""
    generation: int = 0
    attempt: int = 0
    restarts: int = 0
    """Attempts of this job before this one, of all generations."""
    previous_world_size: int | None = None
    """Of the attempt before; None for the first."""
    checkpoint_step: int | None = None
    """Newest checkpoint that the job has reported complete, where the agent knows one."""
    checkpoint_path: str = ""
    report_seconds: float = 0.5


@dataclass(frozen=True)
class JoinRefused:
    """The agent does not take this rank: another version, or the rank has joined already."""

    t: ClassVar[str] = "refused"
    reason: str


@dataclass(frozen=True)
class SaveProposal:
    """Save at the first boundary at or beyond a step, once this is agreed."""

    t: ClassVar[str] = "propose"
    id: str
    step: int
    leave: bool = False
    """The ranks are stopped once the checkpoint is complete."""
    reason: str = ""
    deadline: float | None = None
    """Seconds since 1970: a save is of use until then."""


@dataclass(frozen=True)
class SaveAgreed:
    """All ranks have accepted; this is final."""

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
    "int": lambda value: type(value) is int and abs(value) <= MAX_NUMBER,
    "float": lambda value: type(value) in (int, float) and abs(value) <= MAX_NUMBER,  # nor NaN
    "bool": lambda value: isinstance(value, bool),
    "str": lambda value: isinstance(value, str) and len(value) <= MAX_TEXT,
}
_FROM_CLIENT: dict[str, type[Any]] = {kind.t: kind for kind in ClientMessage.__args__}
_FROM_AGENT: dict[str, type[Any]] = {kind.t: kind for kind in AgentMessage.__args__}


def encode(message: Message) -> bytes:
    """One line, with its newline; texts are cut to MAX_TEXT, numbers not finite are left out.

    Raises:
        WireError: it is longer than MAX_LINE_BYTES.
    """
    whole = {name: _sendable(value) for name, value in asdict(message).items()}
    whole = {name: value for name, value in whole.items() if value is not None}
    line = json.dumps({"t": message.t, **whole}, separators=(",", ":")).encode() + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise WireError(f"a message of {len(line)} bytes exceeds the maximum of {MAX_LINE_BYTES}")
    return line


def decode_client_message(line: bytes) -> ClientMessage | None:
    """Read a rank's line; None for a message of a newer client. Raises WireError."""
    return _decode(line, _FROM_CLIENT)


def decode_agent_message(line: bytes) -> AgentMessage | None:
    """Read an agent's line; None for a message of a newer agent. Raises WireError."""
    return _decode(line, _FROM_AGENT)


def _sendable(value: Any) -> Any:
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _decode(line: bytes, kinds: dict[str, type[Any]]) -> Any:
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
    if kind is None:
        return None
    values = {
        field.name: _checked(field.name, str(field.type), whole[field.name])
        for field in fields(kind)
        if field.name in whole
    }
    try:
        return kind(**values)
    except TypeError as error:
        raise WireError(f"{kind.t}: {error}") from error


def _checked(name: str, kind: str, value: Any) -> Any:
    """A field's value, if it is of the annotated kind and within bounds. Raises WireError."""
    if value is None and kind.endswith(" | None"):
        return None
    kind = kind.split(" | ", 1)[0]
    if not _FITS[kind](value):
        raise WireError(f"{name}: must be {kind}")
    return value
