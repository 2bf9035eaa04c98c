"""What a member tells its leader: that it lives (`PUT /v1/beat`), what broke (`PUT /v1/faults`).

JSON, signed with the job's token, typed on arrival.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drumline_trainer.agent.protocol.leader_orders import MAX_MESSAGE_BYTES, MAX_RANKS, Membership
from drumline_trainer.contract import ContractError, FaultClass
from drumline_trainer.contract import json_fields as read

MEMBER_HEARTBEAT_PATH = "/v1/beat"
FAULTS_PATH = "/v1/faults"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One rank as its agent sees it."""

    rank: int
    position: tuple[int, int, int]
    """`Heartbeat.position` of the newest heartbeat."""
    silent_seconds: float
    patience_seconds: float
    """How long a silence is nothing unusual in that position."""
    evidence: str = ""
    """What the kernel says of the process: `stopped`, `busy`, or nothing of note."""
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberHeartbeat:
    """A member's sign of life, with that of its ranks. Answered with the leader's generation."""

    index: int
    generation: int
    attempt: int
    ranks: tuple[RankView, ...]

    @property
    def membership(self) -> Membership:
        """What it is about."""
        return self.generation, self.attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that ends an attempt."""

    generation: int
    attempt: int
    index: int
    rank: int | None = None
    fault_class: FaultClass
    cause: str
    at: float
    """Seconds since the epoch."""
    detected_at: float
    step: int = 0
    """Steps finished."""
    exit_code: int
    """What the pod would end with."""
    consequence: bool = False
    """Of another fault, most likely: that one is waited for."""
    in_restore: bool = False
    """While the state was being restored, by an error of its own."""

    @property
    def membership(self) -> Membership:
        """What it is about."""
        return self.generation, self.attempt


def parse_member_heartbeat(body: bytes) -> MemberHeartbeat:
    """Read a beat. Raises ContractError."""
    raw = read.json_object(body, MAX_MESSAGE_BYTES)
    return MemberHeartbeat(
        index=read.integer(raw, "index"),
        generation=read.integer(raw, "generation"),
        attempt=read.integer(raw, "attempt"),
        ranks=tuple(_view(item) for item in read.objects(raw, "ranks", limit=MAX_RANKS)),
    )


def parse_fault(body: bytes) -> Fault:
    """Read a fault. Raises ContractError."""
    return fault_from(read.json_object(body, MAX_MESSAGE_BYTES))


def fault_from(raw: dict[str, Any]) -> Fault:
    """Check every field of a decoded JSON object. Raises ContractError."""
    return Fault(
        generation=read.integer(raw, "generation"),
        attempt=read.integer(raw, "attempt"),
        index=read.integer(raw, "index"),
        rank=read.optional_integer(raw, "rank"),
        fault_class=read.choice(raw, "fault_class", FaultClass),
        cause=read.text(raw, "cause"),
        at=read.number(raw, "at"),
        detected_at=read.number(raw, "detected_at"),
        step=read.integer(raw, "step"),
        exit_code=read.integer(raw, "exit_code", high=255),
        consequence=read.flag(raw, "consequence"),
        in_restore=read.flag(raw, "in_restore"),
    )


def _view(raw: dict[str, Any]) -> RankView:
    position = raw.get("position")
    if not isinstance(position, list) or [type(part) for part in position] != [int, int, int]:  # pyright: ignore[reportUnknownVariableType]
        raise ContractError("position: must be three integers")
    return RankView(
        rank=read.integer(raw, "rank"),
        position=(position[0], position[1], position[2]),
        silent_seconds=read.number(raw, "silent_seconds"),
        patience_seconds=read.number(raw, "patience_seconds"),
        evidence=read.text(raw, "evidence", limit=16),
        done=read.flag(raw, "done"),
    )
