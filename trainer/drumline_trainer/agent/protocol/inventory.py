"""What a member has when its ranks rest: its answer to `Prepare`, JSON, typed on arrival."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from drumline_trainer.agent.protocol.leader_orders import (
    MAX_MESSAGE_BYTES,
    MAX_RANKS,
    CommittedCheckpoint,
    parse_checkpoint,
)
from drumline_trainer.agent.protocol.member_reports import Fault, fault_from
from drumline_trainer.agent.snapshots.catalog import SnapshotInfo
from drumline_trainer.contract import ContractError, Incident
from drumline_trainer.contract import json_fields as read

MAX_FAULTS = 16
"""Of one pod: the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipFailure:
    """The end of a membership as one of its members saw it; seconds since the epoch."""

    at: float
    """When it happened, at the latest."""
    noticed_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The answer to `Prepare`."""

    index: int
    previous_generation: int
    """What the ranks of this pod were of before; 0: the pod is new."""
    broken: MembershipFailure | None
    """How that ended; None: it had not."""
    step: int
    """Steps finished in that."""
    saved: CommittedCheckpoint | None
    """The newest checkpoint that this pod has ever heard of."""
    shards: tuple[SnapshotInfo, ...]
    incidents: tuple[Incident, ...]
    faults: tuple[Fault, ...] = ()
    """Of its own ranks, each with its own cause: a leader that is gone may have heard of them too
    late, or in vain."""


def parse_inventory(body: bytes) -> Inventory:
    """Read an inventory. Raises ContractError."""
    raw = read.json_object(body, MAX_MESSAGE_BYTES)
    return Inventory(
        index=read.integer(raw, "index"),
        previous_generation=read.integer(raw, "previous_generation"),
        broken=_break(raw.get("broken")),
        step=read.integer(raw, "step"),
        saved=parse_checkpoint(raw, "saved"),
        shards=tuple(
            SnapshotInfo.parse(item) for item in read.objects(raw, "shards", limit=4 * MAX_RANKS)
        ),
        incidents=tuple(Incident.parse(item) for item in read.objects(raw, "incidents", limit=64)),
        faults=tuple(fault_from(item) for item in read.objects(raw, "faults", limit=MAX_FAULTS)),
    )


def _break(item: object) -> MembershipFailure | None:
    if item is None:
        return None
    if not isinstance(item, dict):
        raise ContractError("broken: must be an object")
    raw = cast("dict[str, Any]", item)
    return MembershipFailure(at=read.number(raw, "at"), noticed_at=read.number(raw, "noticed_at"))
