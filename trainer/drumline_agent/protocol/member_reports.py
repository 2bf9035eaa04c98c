"""Reports of a member to its leader: heartbeats (`PUT /v1/beat`) and faults (`PUT /v1/faults`).

JSON, signed with the job's token, typed on arrival.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from drumline_agent.protocol.membership import MAX_MESSAGE_BYTES, MAX_RANKS, Membership
from drumline_agent.rank_protocol.collective_progress import CollectiveProgress, parse_progress
from drumline_contract import ContractError, FaultClass, GenerationRecord, Pause, optional_pause
from drumline_contract import json_fields as read

MEMBER_HEARTBEAT_PATH = "/v1/beat"
FAULTS_PATH = "/v1/faults"
HEARTBEAT_SECONDS = 1.0
"""Shortest interval between two heartbeats of a member."""
MAX_HEARTBEATS_PER_SECOND = 250
"""A leader handles this many; above 250 members the interval grows."""
SILENT_AFTER_INTERVALS = 2.5
"""Intervals without a heartbeat after which a member counts as silent."""


def heartbeat_interval_seconds(record: GenerationRecord) -> float:
    """Return the seconds between two heartbeats of each member of a gang."""
    return max(HEARTBEAT_SECONDS, len(record.members) / MAX_HEARTBEATS_PER_SECOND)


class ProcessEvidence(StrEnum):
    """Evidence from the kernel about a rank's process, used to find the rank that hangs."""

    NONE = ""
    STOPPED = "stopped"
    """Stopped by a signal or a debugger."""
    BUSY = "busy"
    """It computes, or waits for a device in the kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCompute:
    """Compute time of a rank in a step, without waiting for others."""

    step: int
    """Finished steps when it was measured."""
    seconds: float
    """Seconds of its forward and backward passes, as a mean over the last few steps."""
    stage: int = 0
    """Place in its pipeline: ranks of one stage have the same work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One rank as the agent of its pod sees it."""

    rank: int
    position: tuple[int, int, int]
    """`Heartbeat.position` of the newest heartbeat."""
    silent_seconds: float
    """Since the newest heartbeat."""
    patience_seconds: float
    """A silence up to this length is usual in that position."""
    evidence: ProcessEvidence = ProcessEvidence.NONE
    done: bool = False
    progress: CollectiveProgress | None = None
    """In its collectives, since the newest heartbeat; None where the backend does not know."""
    pause: Pause | None = None
    """Time for which it shows no work. None while it starts."""
    compute: StepCompute | None = None
    """None until it was measured, and of a command's ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberHeartbeat:
    """A member's heartbeat, with the state of its ranks. The answer has the leader's generation."""

    index: int
    generation: int
    attempt: int
    ranks: tuple[RankView, ...]

    @property
    def membership(self) -> Membership:
        """The membership of these ranks."""
        return self.generation, self.attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An event that ends an attempt."""

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
    """Finished steps."""
    exit_code: int
    """The exit code that the pod would have after this fault."""
    consequence: bool = False
    """Most likely follows from another fault: the leader waits for that one."""
    in_restore: bool = False
    """While the state was being restored, by an error of the rank itself."""

    @property
    def membership(self) -> Membership:
        """The membership that the fault ends."""
        return self.generation, self.attempt


def parse_member_heartbeat(body: bytes) -> MemberHeartbeat:
    """Read a member's heartbeat. Raises ContractError."""
    raw = read.json_object(body, MAX_MESSAGE_BYTES)
    return MemberHeartbeat(
        index=read.integer(raw, "index"),
        generation=read.integer(raw, "generation"),
        attempt=read.integer(raw, "attempt"),
        ranks=tuple(_rank_view(item) for item in read.objects(raw, "ranks", limit=MAX_RANKS)),
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


def _rank_view(raw: dict[str, Any]) -> RankView:
    return RankView(
        rank=read.integer(raw, "rank"),
        position=_position(raw.get("position")),
        silent_seconds=read.number(raw, "silent_seconds"),
        patience_seconds=read.number(raw, "patience_seconds"),
        evidence=read.choice(raw, "evidence", ProcessEvidence),
        done=read.flag(raw, "done"),
        progress=_progress(raw),
        pause=optional_pause(raw),
        compute=_compute(raw),
    )


def _progress(raw: dict[str, Any]) -> CollectiveProgress | None:
    progress = read.optional_nested(raw, "progress")
    return None if progress is None else parse_progress(progress)


def _compute(raw: dict[str, Any]) -> StepCompute | None:
    compute = read.optional_nested(raw, "compute")
    if compute is None:
        return None
    return StepCompute(
        step=read.integer(compute, "step"),
        seconds=read.number(compute, "seconds"),
        stage=read.integer(compute, "stage"),
    )


def _position(value: object) -> tuple[int, int, int]:
    parts = cast("list[object]", value) if isinstance(value, list) else []
    match parts:
        case [int(step), int(part), int(phase)] if not any(isinstance(x, bool) for x in parts):
            return step, part, phase
        case _:
            raise ContractError("position: must be three integers")
