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
from dataclasses import asdict, dataclass
from enum import IntEnum, StrEnum
from typing import Any, Final, cast

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
SIGNATURE_HEADER: Final = "X-Drumline-Signature"
GANG_FOLDER: Final = "/var/run/drumline/gang"
"""Where a pod of one's own finds `hosts` (mounted over /etc/hosts) and `hostfile` (for mpirun)."""
TOKEN_FILE: Final = "/var/run/drumline/token/token"  # noqa: S105 - a path, not a secret


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
        )


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
    """Answer of `GET /v1/status`."""

    job_uid: str
    pod_uid: str
    index: int
    generation: int
    attempt: int
    phase: AgentPhase
    progress: Progress

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
