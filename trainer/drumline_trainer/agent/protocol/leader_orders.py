"""What a leader tells the members of its gang (`PUT /v1/rounds`).

JSON, signed with the job's token, typed on arrival. The leader is the agent of the record's store
member. Every order carries the membership it is about; whoever is past that one refuses it. The
other way, from member to leader, is `reports`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from drumline_trainer.agent.snapshots.catalog import SnapshotInfo
from drumline_trainer.contract import ContractError, FaultClass
from drumline_trainer.contract import json_fields as read

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ROUNDS_PATH = "/v1/rounds"
NOTICE_PATH = "/v1/notice"
MAX_RANKS = 1024
"""In one pod."""
MAX_MESSAGE_BYTES = 1 << 20

Membership = tuple[int, int]
"""(generation, attempt), compared lexicographically."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Bring the ranks to rest for this membership, and say what snapshots there are."""

    generation: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSource:
    """Where a snapshot is to be had."""

    holder: int
    """Index of a member."""
    shard: SnapshotInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedCheckpoint:
    """A checkpoint that is known to be committed."""

    step: int
    digest: str
    """Of its manifest; empty where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """Train in this membership, from here."""

    generation: int
    attempt: int
    store_port: int
    restore_step: int | None
    """Step of the snapshots to go on from; None: whatever storage has."""
    fetch: tuple[SnapshotSource, ...]
    """The snapshots of this member's ranks that it lacks, and who holds them."""
    floor: CommittedCheckpoint | None
    """The newest checkpoint that anyone knows of: storage must not give an older one."""
    incidents: list[dict[str, Any]]
    """The leader's log: every agent of the gang has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """End these ranks: the others wait for them and they do not move."""

    generation: int
    attempt: int
    ranks: list[int]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Every rank of the gang is done: the pods may end."""

    generation: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """The gang cannot go on in these pods."""

    generation: int
    attempt: int
    index: int
    """The member to blame."""
    rank: int | None
    exit_code: int
    """Of the culprit's pod."""
    fault_class: FaultClass
    reason: str


LeaderOrder = Prepare | Go | Kill | Finish | Abandon
_ORDERS: dict[str, type[LeaderOrder]] = {
    "prepare": Prepare,
    "go": Go,
    "kill": Kill,
    "finish": Finish,
    "abandon": Abandon,
}
_NAMES: dict[type, str] = {kind: name for name, kind in _ORDERS.items()}


def encode(word: DataclassInstance) -> bytes:
    """JSON bytes: what is sent and signed."""
    whole = asdict(word)
    name = _NAMES.get(type(word))
    if name is not None:
        whole["kind"] = name
    return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()


def membership_of(order: LeaderOrder) -> Membership:
    """What an order is about."""
    return order.generation, order.attempt


def parse_leader_order(body: bytes) -> LeaderOrder:
    """Read an order. Raises ContractError."""
    raw = read.json_object(body, MAX_MESSAGE_BYTES)
    membership = {name: read.integer(raw, name) for name in ("generation", "attempt")}
    match raw.get("kind"):
        case "prepare":
            return Prepare(**membership)
        case "go":
            return Go(
                **membership,
                store_port=read.integer(raw, "store_port", low=1, high=65535),
                restore_step=read.optional_integer(raw, "restore_step"),
                fetch=tuple(_source(item) for item in read.objects(raw, "fetch", limit=MAX_RANKS)),
                floor=parse_checkpoint(raw, "floor"),
                incidents=read.objects(raw, "incidents", limit=64),
            )
        case "kill":
            return Kill(
                **membership, ranks=_integers(raw, "ranks"), reason=read.text(raw, "reason")
            )
        case "finish":
            return Finish(**membership)
        case "abandon":
            return Abandon(
                **membership,
                index=read.integer(raw, "index"),
                rank=read.optional_integer(raw, "rank"),
                exit_code=read.integer(raw, "exit_code", high=255),
                fault_class=read.choice(raw, "fault_class", FaultClass),
                reason=read.text(raw, "reason"),
            )
        case other:
            raise ContractError(f"kind: {other!r} is no order")


def parse_checkpoint(whole: dict[str, Any], key: str) -> CommittedCheckpoint | None:
    """A checkpoint in a field of a decoded JSON object, if there is one. Raises ContractError."""
    item = whole.get(key)
    if item is None:
        return None
    if not isinstance(item, dict):
        raise ContractError(f"{key}: must be an object")
    raw = cast("dict[str, Any]", item)
    return CommittedCheckpoint(
        step=read.integer(raw, "step"), digest=read.text(raw, "digest", limit=128)
    )


def _source(raw: dict[str, Any]) -> SnapshotSource:
    shard = raw.get("shard")
    if not isinstance(shard, dict):
        raise ContractError("shard: must be an object")
    return SnapshotSource(
        holder=read.integer(raw, "holder"), shard=SnapshotInfo.parse(cast("dict[str, Any]", shard))
    )


def _integers(raw: dict[str, Any], key: str) -> list[int]:
    value = raw.get(key)
    if not isinstance(value, list) or any(type(item) is not int for item in value):  # pyright: ignore[reportUnknownVariableType]
        raise ContractError(f"{key}: must be a list of integers")
    return value  # pyright: ignore[reportUnknownVariableType]
