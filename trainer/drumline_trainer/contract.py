"""What the operator and the pods of a job say to each other. Standard library only.

Three kinds of words:

* the environment the operator puts into a pod (`Env`),
* the signed generation record the operator pushes to a job's agents (`GenerationRecord`),
* what comes back: the agent's status (`AgentStatus`), the last words of a pod
  (`FinalReport`, its termination message) and the exit codes (`ExitCode`).

Everything that comes back is tenant input to the operator: `AgentStatus.parse` and
`FinalReport.parse` bound its size before parsing it, check every type, and raise `ContractError`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Final, TypeVar, cast

AGENT_PORT: Final = 29400
"""TCP port of an agent's HTTP API on the pod's address."""
STORE_PORT: Final = 29500
"""TCP port of the rendezvous store (torch TCPStore), served beside the agent of the lowest index.
Attempt `a` of a generation uses STORE_PORT + a % STORE_PORTS."""
STORE_PORTS: Final = 64
MAX_BODY_BYTES: Final = 1 << 20
"""Largest body an agent accepts and the operator reads (a record of 5,000 members is ~0.5 MB)."""
MAX_FINAL_REPORT_BYTES: Final = 4096
"""The kubelet keeps this much of a termination message."""
MAX_FIGURE: Final = 1e15
"""A loss or a rate beyond this, either way, is no measurement and is read as none."""
MAX_INCIDENTS: Final = 32
MAX_SILENT: Final = 256
MAX_CAUSE_CHARS: Final = 512
MAX_WAIT_SECONDS: Final = 30.0
"""Longest that an agent holds a status request open."""
SIGNATURE_HEADER: Final = "X-Drumline-Signature"
GANG_FOLDER: Final = "/var/run/drumline/gang"
"""Where a pod of one's own finds `hosts` (mounted over /etc/hosts) and `hostfile` (for mpirun)."""
TOKEN_FILE: Final = "/var/run/drumline/token/token"  # noqa: S105 - a path, not a secret

Choice = TypeVar("Choice", bound=StrEnum)


class ContractError(ValueError):
    """A message that breaks this contract; says which field and why."""


class Env(StrEnum):
    """Environment variables of a pod made by the operator."""

    NAMESPACE = "DRUMLINE_NAMESPACE"
    JOB = "DRUMLINE_JOB"
    JOB_UID = "DRUMLINE_JOB_UID"
    POD_UID = "DRUMLINE_POD_UID"
    POD_IP = "DRUMLINE_POD_IP"
    INDEX = "DRUMLINE_INDEX"
    """Index of this pod (node) in its gang, 0..nodes-1."""
    NODES = "DRUMLINE_NODES"
    GPUS_PER_NODE = "DRUMLINE_GPUS_PER_NODE"
    """Ranks in this pod: one process per GPU."""
    GENERATION = "DRUMLINE_GENERATION"
    EPOCH = "DRUMLINE_EPOCH"
    CONFIG = "DRUMLINE_CONFIG"
    """The trainer's whole configuration as JSON (`config.TrainerConfig`)."""
    CHECKPOINT_FOLDER = "DRUMLINE_CHECKPOINT_FOLDER"
    """Folder shared by all pods of the job; empty where the job has no durable storage."""


class ExitCode(IntEnum):
    """Exit codes of a rank and of its pod; the operator maps them to failure classes."""

    OK = 0
    APPLICATION = 1
    """The training code raised: restarted within the budget."""
    CONFIG = 64
    """The configuration can never work: not restarted."""
    CORRUPT_CHECKPOINT = 65
    """No checkpoint of those on storage verifies: not restarted, nothing is overwritten."""
    PEER_LOST = 75
    """Another member of the gang went away: charged to infrastructure."""
    PREEMPTED = 77
    """Left after a notice, with an acknowledged checkpoint."""


def pod_name(job: str, index: int, generation: int) -> str:
    """Name of a gang member: deterministic, so a replayed create is a harmless 409."""
    return f"{job}-{index}-g{generation}"


def host_name(job: str, index: int) -> str:
    """Name by which members of a gang know each other, through /etc/hosts and without DNS."""
    return f"{job}-{index}"


def sign(token: bytes, *parts: bytes) -> str:
    """HMAC-SHA256 over length-prefixed parts, hex. Length prefixes keep parts from blending."""
    mac = hmac.new(token, digestmod=hashlib.sha256)
    for part in parts:
        mac.update(len(part).to_bytes(8, "big"))
        mac.update(part)
    return mac.hexdigest()


def verify(token: bytes, signature: str, *parts: bytes) -> bool:
    """Constant-time check of `sign`."""
    return hmac.compare_digest(sign(token, *parts), signature)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One pod of a generation."""

    index: int
    pod_uid: str
    address: str
    """The pod's IP address."""
    host: str
    """`host_name` of the pod."""
    ranks: int
    """Processes in this pod; its first global rank is the sum over lower indices."""
    node: str = ""
    """The machine it runs on: copies of its snapshots belong on another one."""


@dataclass(frozen=True, slots=True, kw_only=True, order=False)
class GenerationRecord:
    """One membership of a job's ranks. Only the operator makes one; lower ones are ignored."""

    job_uid: str
    generation: int
    epoch: int
    members: tuple[Member, ...]
    image: str = ""
    restore_step: int | None = None
    """A floor: the newest step known to be saved. The trainer restores the newest checkpoint that
    verifies and never an older one than this; None where no step is known to be saved."""
    restore_digest: str = ""
    """Digest of that step's manifest; a checkpoint of that very step must have it."""
    restarts_left: Mapping[str, int] = field(default_factory=dict[str, int])
    """By `FaultClass`: restarts in place that may still happen in this generation. A class that is
    not listed has no limit."""
    hang_timeout_seconds: float | None = None
    """When all ranks wait in the same place, nobody is to blame: all restart after this long."""

    @property
    def store_member(self) -> Member:
        """The member whose pod serves the rendezvous store: the lowest live index."""
        return min(self.members, key=lambda member: member.index)

    @property
    def world_size(self) -> int:
        """Number of ranks over all members."""
        return sum(member.ranks for member in self.members)

    def first_rank(self, index: int) -> int:
        """Global rank of the first process in the pod with this index."""
        return sum(member.ranks for member in self.members if member.index < index)

    def encode(self) -> bytes:
        """Canonical JSON: what is sent and what is signed."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, body: bytes) -> GenerationRecord:
        """Read `encode`'s bytes.

        Raises:
            ContractError: too large, not JSON, a field missing or of the wrong type.
        """
        raw = _json_object(body, MAX_BODY_BYTES)
        members_raw = raw.get("members")
        if not isinstance(members_raw, list) or not members_raw:
            raise ContractError("members: must be a list with at least one member")
        members = tuple(_member(item) for item in cast("list[Any]", members_raw))
        indices = [member.index for member in members]
        if indices != sorted(set(indices)):
            raise ContractError("members: indices must be distinct and ascending")
        return cls(
            job_uid=_text(raw, "job_uid"),
            generation=_integer(raw, "generation", low=1),
            epoch=_integer(raw, "epoch"),
            members=members,
            image=_text(raw, "image"),
            restore_step=_optional_integer(raw, "restore_step"),
            restore_digest=_text(raw, "restore_digest"),
            restarts_left=_counts(raw, "restarts_left"),
            hang_timeout_seconds=_optional_number(raw, "hang_timeout_seconds"),
        )


class FaultClass(StrEnum):
    """Who answers for a fault; each has a budget of its own."""

    APPLICATION = "Application"
    """The training code raised, or died by a signal of its own."""
    OUT_OF_MEMORY = "OutOfMemory"
    HANG = "Hang"
    """Silent while the others waited for it."""
    INFRASTRUCTURE = "Infrastructure"
    """A pod, a node or a link was lost."""
    PREEMPTION = "Preemption"
    """Gave way on request; never charged."""


class RestoreTier(StrEnum):
    """Where the state came from that training went on from."""

    MEMORY = "Memory"
    """Snapshots in the memory of the pods that took them."""
    PEER = "Peer"
    """At least one snapshot came from the memory of another node."""
    STORAGE = "Storage"
    """The newest verified checkpoint on shared storage."""
    INITIAL = "Initial"
    """Nothing was saved: from the initial weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One fault and the recovery from it. Times are seconds since the epoch, in this order.

    (generation, attempt) is the membership that the recovery led to: it numbers the incidents of a
    job. A time that is not known yet is None; a recovery is over once `first_step_at` is known.
    """

    generation: int
    attempt: int
    fault_class: FaultClass
    cause: str
    """One sentence; at most 512 characters."""
    culprit_index: int | None = None
    culprit_rank: int | None = None
    fault_at: float
    """When the culprit failed, as well as it is known: its last sign of life at the latest."""
    detected_at: float
    decided_at: float | None = None
    """When the new membership was settled."""
    replaced_at: float | None = None
    """When the missing process or pod stood ready."""
    joined_at: float | None = None
    """When all ranks had met again."""
    restored_at: float | None = None
    first_step_at: float | None = None
    """When the first step after the restore was finished."""
    failed_step: int = 0
    """Steps finished when the fault struck."""
    restored_step: int = 0
    """Step training went on from; `failed_step - restored_step` steps were done twice."""
    tier: RestoreTier | None = None

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Incident:
        """Check every field of a decoded JSON object. Raises ContractError."""
        return cls(
            generation=_integer(raw, "generation"),
            attempt=_integer(raw, "attempt"),
            fault_class=_choice(raw, "fault_class", FaultClass),
            cause=_text(raw, "cause")[:MAX_CAUSE_CHARS],
            culprit_index=_optional_integer(raw, "culprit_index"),
            culprit_rank=_optional_integer(raw, "culprit_rank"),
            fault_at=_time(raw, "fault_at"),
            detected_at=_time(raw, "detected_at"),
            decided_at=_optional_number(raw, "decided_at"),
            replaced_at=_optional_number(raw, "replaced_at"),
            joined_at=_optional_number(raw, "joined_at"),
            restored_at=_optional_number(raw, "restored_at"),
            first_step_at=_optional_number(raw, "first_step_at"),
            failed_step=_integer(raw, "failed_step"),
            restored_step=_integer(raw, "restored_step"),
            tier=None if raw.get("tier") is None else _choice(raw, "tier", RestoreTier),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A member that has not been heard."""

    index: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Body of `PUT /v1/notice`, signed over ("notice", body): save at the next step boundary."""

    job_uid: str
    id: str
    """Names the notice; the same id twice is one notice."""
    deadline: float
    """Seconds since the epoch: the answer is of use until then."""
    leave: bool
    """Exit with PREEMPTED once the checkpoint is committed; else go on training."""
    withdraw: bool = False
    """Take the notice with this id back, if nobody has acted on it yet."""

    def encode(self) -> bytes:
        """JSON bytes: what is sent and signed."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, body: bytes) -> Notice:
        """Read `encode`'s bytes. Raises ContractError."""
        raw = _json_object(body, 4096)
        return cls(
            job_uid=_text(raw, "job_uid"),
            id=_text(raw, "id", limit=253),
            deadline=_time(raw, "deadline"),
            leave=_flag(raw, "leave"),
            withdraw=_flag(raw, "withdraw"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeAnswer:
    """What became of the newest notice: reading it changes nothing, so it may be read again."""

    id: str
    step: int | None = None
    """The step whose checkpoint is committed and verified on request; None while under way."""
    digest: str = ""
    error: str = ""
    """Why it could not be saved; empty while all is well."""


class AgentPhase(StrEnum):
    """Where an agent stands with its generation."""

    WAITING = "waiting"
    """Ready, no record yet."""
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far training is. `step` counts finished optimizer steps."""

    step: int = 0
    total_steps: int = 0
    loss: float | None = None
    tokens_per_second: float | None = None
    checkpoint_step: int | None = None
    checkpoint_digest: str = ""
    """Digest of the newest committed checkpoint's manifest."""

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Progress:
        """Check every field of a decoded JSON object. Raises ContractError."""
        return cls(
            step=_integer(raw, "step"),
            total_steps=_integer(raw, "total_steps"),
            loss=_optional_number(raw, "loss"),
            tokens_per_second=_optional_number(raw, "tokens_per_second"),
            checkpoint_step=_optional_integer(raw, "checkpoint_step"),
            checkpoint_digest=_text(raw, "checkpoint_digest"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """Answer of `GET /v1/status?since=VERSION&wait=SECONDS`.

    With `since` equal to the version the agent has, it answers when that changes, at the latest
    after `wait` (at most MAX_WAIT_SECONDS); without them at once.
    """

    job_uid: str
    pod_uid: str
    index: int
    generation: int
    attempt: int
    phase: AgentPhase
    progress: Progress
    version: int = 0
    """Raised whenever something changed that the operator waits for; see `since`."""
    silent: tuple[Silence, ...] = ()
    """Members this agent should hear and has not heard lately."""
    incidents: tuple[Incident, ...] = ()
    """The newest of this generation and the last one's, oldest first; at most MAX_INCIDENTS."""
    notice: NoticeAnswer | None = None

    def encode(self) -> bytes:
        """JSON bytes."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, body: bytes) -> AgentStatus:
        """Read a status. Raises ContractError for anything malformed or oversized."""
        raw = _json_object(body, 64 * 1024)
        try:
            phase = AgentPhase(_text(raw, "phase"))
        except ValueError as error:
            raise ContractError(f"phase: {error}") from None
        progress = raw.get("progress")
        if not isinstance(progress, dict):
            raise ContractError("progress: must be an object")
        return cls(
            job_uid=_text(raw, "job_uid"),
            pod_uid=_text(raw, "pod_uid"),
            index=_integer(raw, "index"),
            generation=_integer(raw, "generation"),
            attempt=_integer(raw, "attempt"),
            phase=phase,
            progress=Progress.parse(cast("dict[str, Any]", progress)),
            version=_integer(raw, "version") if "version" in raw else 0,
            silent=tuple(_silence(item) for item in _objects(raw, "silent", limit=MAX_SILENT)),
            incidents=tuple(
                Incident.parse(item) for item in _objects(raw, "incidents", limit=MAX_INCIDENTS)
            ),
            notice=_notice_answer(raw.get("notice")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalReport:
    """A pod's termination message: how far it came and, if it failed, why."""

    progress: Progress
    error: str = ""
    """Rank and last line of the error, cut to 1,024 characters; empty on success."""
    failed_rank: int | None = None

    def encode(self) -> bytes:
        """JSON bytes, at most MAX_FINAL_REPORT_BYTES."""
        whole = {**asdict(self), "error": self.error[:1024]}
        body = json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()
        if len(body) > MAX_FINAL_REPORT_BYTES:  # non-ASCII text grows by escaping
            whole["error"] = self.error[:128]
            body = json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()
        return body

    @classmethod
    def parse(cls, body: bytes) -> FinalReport:
        """Read a termination message. Raises ContractError if it is not one of ours."""
        raw = _json_object(body, MAX_FINAL_REPORT_BYTES)
        progress = raw.get("progress")
        if not isinstance(progress, dict):
            raise ContractError("progress: must be an object")
        return cls(
            progress=Progress.parse(cast("dict[str, Any]", progress)),
            error=_text(raw, "error")[:1024],
            failed_rank=_optional_integer(raw, "failed_rank"),
        )


def _member(item: object) -> Member:
    if not isinstance(item, dict):
        raise ContractError("members: each must be an object")
    raw = cast("dict[str, Any]", item)
    return Member(
        index=_integer(raw, "index"),
        pod_uid=_text(raw, "pod_uid"),
        address=_text(raw, "address"),
        host=_text(raw, "host"),
        ranks=_integer(raw, "ranks"),
        node=_text(raw, "node"),
    )


def _silence(raw: dict[str, Any]) -> Silence:
    return Silence(index=_integer(raw, "index"), seconds=_time(raw, "seconds"))


def _notice_answer(item: object) -> NoticeAnswer | None:
    if item is None:
        return None
    if not isinstance(item, dict):
        raise ContractError("notice: must be an object")
    raw = cast("dict[str, Any]", item)
    return NoticeAnswer(
        id=_text(raw, "id", limit=253),
        step=_optional_integer(raw, "step"),
        digest=_text(raw, "digest", limit=128),
        error=_text(raw, "error"),
    )


def _json_object(body: bytes, limit: int) -> dict[str, Any]:
    if len(body) > limit:
        raise ContractError(f"body of {len(body)} bytes is over the limit of {limit}")
    try:
        raw: object = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ContractError("must be a JSON object")
    return cast("dict[str, Any]", raw)


def _text(raw: dict[str, Any], key: str, *, limit: int = 2048) -> str:
    value = raw.get(key, "")
    if not isinstance(value, str) or len(value) > limit:
        raise ContractError(f"{key}: must be a string of at most {limit} characters")
    # JSON can spell half a character (a lone surrogate), which no later encoder accepts.
    return value.encode(errors="replace").decode()


def _choice(raw: dict[str, Any], key: str, kind: type[Choice]) -> Choice:
    try:
        return kind(_text(raw, key))
    except ValueError as error:
        raise ContractError(f"{key}: {error}") from None


def _flag(raw: dict[str, Any], key: str) -> bool:
    value = raw.get(key)
    if not isinstance(value, bool):
        raise ContractError(f"{key}: must be true or false")
    return value


def _objects(raw: dict[str, Any], key: str, *, limit: int) -> list[dict[str, Any]]:
    value = raw.get(key, [])
    if not isinstance(value, list) or len(cast("list[Any]", value)) > limit:
        raise ContractError(f"{key}: must be a list of at most {limit}")
    items = cast("list[Any]", value)
    if not all(isinstance(item, dict) for item in items):
        raise ContractError(f"{key}: each must be an object")
    return items


def _counts(raw: dict[str, Any], key: str) -> dict[str, int]:
    value = raw.get(key, {})
    if not isinstance(value, dict) or len(cast("dict[Any, Any]", value)) > 16:
        raise ContractError(f"{key}: must be an object of at most 16 counts")
    counts = cast("dict[str, Any]", value)
    return {name: _integer(counts, name) for name in counts}


def _time(raw: dict[str, Any], key: str) -> float:
    value = _optional_number(raw, key)
    if value is None:
        raise ContractError(f"{key}: must be a number")
    return value


def _integer(raw: dict[str, Any], key: str, *, low: int = 0, high: int = 1 << 53) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ContractError(f"{key}: must be an integer in {low}..{high}")
    return value


def _optional_integer(raw: dict[str, Any], key: str) -> int | None:
    return None if raw.get(key) is None else _integer(raw, key)


def _optional_number(raw: dict[str, Any], key: str) -> float | None:
    value = raw.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ContractError(f"{key}: must be a number")
    # False for a NaN too; compared before it is converted, as an integer may be of any size
    return float(value) if -MAX_FIGURE <= value <= MAX_FIGURE else None
