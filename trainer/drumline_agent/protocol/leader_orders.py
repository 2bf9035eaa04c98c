"""Orders of a leader to the members of its gang (`PUT /v1/rounds`).

JSON, signed with the job's token, typed on arrival. The leader is the agent of the record's store
member. Every order carries its membership. A member that has a later membership rejects it.
`member_reports` has the messages from a member to the leader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drumline_agent.protocol.membership import MAX_MESSAGE_BYTES, MAX_RANKS, Membership
from drumline_agent.protocol.snapshot_info import SnapshotInfo
from drumline_client.wire import MAX_LINE_BYTES, MAX_TEXT
from drumline_contract import ContractError, FaultClass
from drumline_contract import json_fields as read

ROUNDS_PATH = "/v1/rounds"
NOTICE_PATH = "/v1/notice"
MAX_INCIDENTS_IN_ORDER = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Quiesce the ranks for this membership and answer with an `Inventory`."""

    generation: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSource:
    """A snapshot and a member that holds it."""

    holder: int
    """Index of a member."""
    shard: SnapshotInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedCheckpoint:
    """A checkpoint that is known to be committed."""

    step: int
    digest: str
    """Digest of its manifest. Empty if it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """Train in this membership, starting from the given step."""

    generation: int
    attempt: int
    store_port: int
    restore_step: int | None
    """Step of the snapshots to restore; None: restore the newest checkpoint on storage."""
    fetch: tuple[SnapshotSource, ...]
    """Snapshots of this member's ranks that it lacks, with a member that holds each."""
    floor: CommittedCheckpoint | None
    """The newest checkpoint that any member knows of: an older one must not be restored."""
    incidents: list[dict[str, Any]]
    """The leader's incident log: every agent of the gang keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Kill these ranks, which hang while the others wait for them."""

    generation: int
    attempt: int
    ranks: list[int]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowStacks:
    """Answer with the `RankStacks` of ranks that hang. It ends them."""

    generation: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Every rank of the gang is done: the pods may end."""

    generation: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """The gang cannot be restarted in these pods."""

    generation: int
    attempt: int
    index: int
    """The member with the root cause."""
    rank: int | None
    exit_code: int
    """Exit code of that member's pod."""
    fault_class: FaultClass
    reason: str
    held_seconds: float = 0.0
    """Seconds for which the pods were kept for their user before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOrder:
    """Hand this line to every client of the pod's ranks."""

    generation: int
    attempt: int
    line: str
    """A proposal to save, or its outcome (`drumline_client.wire`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """The ranks' clients have reported a checkpoint complete, or could not save one on request."""

    generation: int
    attempt: int
    step: int | None
    """Step of the checkpoint. None if it could not be saved."""
    path: str
    notice: str
    """Id of the notice that this answers; empty where the script saved by itself."""
    leave: bool
    """The ranks are stopped now."""
    error: str
    """Why there is none; empty where there is one."""


LeaderOrder = Prepare | Go | Kill | ShowStacks | Finish | Abandon | ClientOrder | CheckpointSaved
KINDS: Mapping[type[LeaderOrder], str] = {
    Prepare: "prepare",
    Go: "go",
    Kill: "kill",
    ShowStacks: "places",
    Finish: "finish",
    Abandon: "abandon",
    ClientOrder: "client",
    CheckpointSaved: "saved",
}
"""Value of the field `kind` on the wire."""


def membership_of(order: LeaderOrder) -> Membership:
    """Return the membership that an order belongs to."""
    return order.generation, order.attempt


def parse_leader_order(body: bytes) -> LeaderOrder:
    """Read an order. Raises ContractError."""
    raw = read.json_object(body, MAX_MESSAGE_BYTES)
    # Every order carries its membership. The fields of each kind follow.
    generation, attempt = read.integer(raw, "generation"), read.integer(raw, "attempt")
    match raw.get("kind"):
        case "client" | "saved":
            return _about_clients(raw, generation=generation, attempt=attempt)
        case "prepare":
            return Prepare(generation=generation, attempt=attempt)
        case "go":
            return Go(
                generation=generation,
                attempt=attempt,
                store_port=read.integer(raw, "store_port", low=1, high=65535),
                restore_step=read.optional_integer(raw, "restore_step"),
                fetch=tuple(_source(item) for item in read.objects(raw, "fetch", limit=MAX_RANKS)),
                floor=parse_checkpoint(raw, "floor"),
                incidents=read.objects(raw, "incidents", limit=MAX_INCIDENTS_IN_ORDER),
            )
        case "kill":
            return Kill(
                generation=generation,
                attempt=attempt,
                ranks=read.integers(raw, "ranks"),
                reason=read.text(raw, "reason"),
            )
        case "places":
            return ShowStacks(generation=generation, attempt=attempt)
        case "finish":
            return Finish(generation=generation, attempt=attempt)
        case "abandon":
            return Abandon(
                generation=generation,
                attempt=attempt,
                index=read.integer(raw, "index"),
                rank=read.optional_integer(raw, "rank"),
                exit_code=read.integer(raw, "exit_code", high=255),
                fault_class=read.choice(raw, "fault_class", FaultClass),
                reason=read.text(raw, "reason"),
                held_seconds=read.optional_number(raw, "held_seconds") or 0.0,
            )
        case kind:
            raise ContractError(f"kind: {kind!r} is not a kind of order")


def _about_clients(
    raw: dict[str, Any], *, generation: int, attempt: int
) -> ClientOrder | CheckpointSaved:
    if raw["kind"] == "client":
        line = read.text(raw, "line", limit=MAX_LINE_BYTES)
        return ClientOrder(generation=generation, attempt=attempt, line=line)
    return CheckpointSaved(
        generation=generation,
        attempt=attempt,
        step=read.optional_integer(raw, "step"),
        path=read.text(raw, "path", limit=MAX_TEXT),
        notice=read.text(raw, "notice", limit=253),
        leave=read.flag(raw, "leave"),
        error=read.text(raw, "error", limit=MAX_TEXT),
    )


def parse_checkpoint(whole: dict[str, Any], key: str) -> CommittedCheckpoint | None:
    """Decode an optional checkpoint in a field of a JSON object.

    Raises:
        ContractError: it is malformed.
    """
    raw = read.optional_nested(whole, key)
    if raw is None:
        return None
    return CommittedCheckpoint(
        step=read.integer(raw, "step"), digest=read.text(raw, "digest", limit=128)
    )


def _source(raw: dict[str, Any]) -> SnapshotSource:
    return SnapshotSource(
        holder=read.integer(raw, "holder"),
        shard=SnapshotInfo.parse(read.nested(raw, "shard")),
    )
