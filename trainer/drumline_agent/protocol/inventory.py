"""A member's answer to `Prepare`: what it has once its ranks are quiesced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drumline_agent.protocol.leader_orders import (
    MAX_INCIDENTS_IN_ORDER,
    CommittedCheckpoint,
    parse_checkpoint,
)
from drumline_agent.protocol.member_reports import Fault, fault_from
from drumline_agent.protocol.membership import MAX_MESSAGE_BYTES, MAX_RANKS
from drumline_agent.protocol.snapshot_info import SnapshotInfo
from drumline_contract import Incident
from drumline_contract import json_fields as read

MAX_FAULTS = 16
"""Maximum number of faults of one pod. The newest are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipFailure:
    """The failure of a membership as one of its members saw it; seconds since the epoch."""

    at: float
    """When it happened, at the latest."""
    noticed_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The answer to `Prepare`."""

    index: int
    previous_generation: int
    """The generation that this pod's ranks trained in before; 0: the pod is new."""
    broken: MembershipFailure | None
    """Failure of the previous membership. None: it had not failed."""
    step: int
    """Steps finished in the previous membership."""
    saved: CommittedCheckpoint | None
    """The newest checkpoint that this pod knows of."""
    shards: tuple[SnapshotInfo, ...]
    incidents: tuple[Incident, ...]
    faults: tuple[Fault, ...] = ()
    """Faults of its own ranks, each with its own cause. A former leader may not have received them.
    """


def parse_inventory(body: bytes) -> Inventory:
    """Read an inventory. Raises ContractError."""
    raw = read.json_object(body, MAX_MESSAGE_BYTES)
    shards = read.objects(raw, "shards", limit=4 * MAX_RANKS)
    incidents = read.objects(raw, "incidents", limit=MAX_INCIDENTS_IN_ORDER)
    return Inventory(
        index=read.integer(raw, "index"),
        previous_generation=read.integer(raw, "previous_generation"),
        broken=_failure(raw),
        step=read.integer(raw, "step"),
        saved=parse_checkpoint(raw, "saved"),
        shards=tuple(SnapshotInfo.parse(item) for item in shards),
        incidents=tuple(Incident.parse(item) for item in incidents),
        faults=tuple(fault_from(item) for item in read.objects(raw, "faults", limit=MAX_FAULTS)),
    )


def _failure(inventory: dict[str, Any]) -> MembershipFailure | None:
    raw = read.optional_nested(inventory, "broken")
    if raw is None:
        return None
    return MembershipFailure(at=read.number(raw, "at"), noticed_at=read.number(raw, "noticed_at"))
