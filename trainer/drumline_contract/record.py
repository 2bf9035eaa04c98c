"""The signed generation record: the members of a job's gang, and the checkpoint it restores."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from drumline_contract import json_fields as read
from drumline_contract.json_fields import ContractError


def sign(token: bytes, *parts: bytes | memoryview) -> str:
    """Return the hex HMAC-SHA256 over the parts; length prefixes keep them from blending."""
    mac = hmac.new(token, digestmod=hashlib.sha256)
    for part in parts:
        # Length prefixes: otherwise ("ab", "c") and ("a", "bc") would have one signature.
        mac.update(len(part).to_bytes(8, "big"))
        mac.update(part)
    return mac.hexdigest()


def verify(token: bytes, signature: str, *parts: bytes | memoryview) -> bool:
    """Check a signature of `sign` in constant time.

    Args:
        token: the job's token.
        signature: hexadecimal HMAC.
        *parts: signed bytes, in order.
    """
    # A comparison that stops early would reveal the matching prefix.
    return hmac.compare_digest(sign(token, *parts), signature)


def pod_name(job: str, index: int, generation: int) -> str:
    """Return a gang member's pod name: always the same, so a repeated create is a harmless 409.

    Args:
        job: name of the job.
        index: index of the member.
        generation: pod generation of the member.
    """
    return f"{job}-{index}-g{generation}"


def host_name(job: str, index: int) -> str:
    """Return a gang member's host name, which /etc/hosts resolves without DNS."""
    return f"{job}-{index}"


MAX_BODY_BYTES: Final = 1 << 20
"""Largest body an agent accepts and the operator reads (a record of 5,000 members is ~0.5 MB)."""


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
    """The node it runs on: copies of its snapshots belong on another node."""
    alias: str = ""
    """Second host name of the member for its peers, such as `launcher-0` for a pod of a role. Such
    a pod has no ranks."""


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
    """Restarts in place that are left in this generation, by `FaultClass`. A class that is not
    listed has no limit."""
    hang_timeout_seconds: float | None = None
    """Seconds after which all ranks restart if all are silent at the same position."""
    hold_seconds: float | None = None
    """Seconds for which pods stay after their program failed for good. None: they end at once."""
    previous_ranks: int | None = None
    """GPUs that the gang trained on before this generation; None: it has not trained."""
    companions: tuple[Member, ...] = ()
    """Pods of roles that have no agent: the members can reach them by name."""

    @property
    def store_member(self) -> Member:
        """The member whose pod serves the rendezvous store: the lowest live index."""
        return min(self.members, key=lambda member: member.index)

    @property
    def world_size(self) -> int:
        """Number of ranks over all members."""
        return sum(member.ranks for member in self.members)

    def first_rank(self, index: int) -> int:
        """Return the global rank of the first process in the pod with this index."""
        return sum(member.ranks for member in self.members if member.index < index)

    def encode(self) -> bytes:
        """Return the canonical JSON that is sent and signed."""
        # Canonical: sorted keys and fixed separators, since the signature covers the bytes.
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, body: bytes) -> GenerationRecord:
        """Read `encode`'s bytes.

        Raises:
            ContractError: too large, not JSON, a field missing or of the wrong type.
        """
        raw = read.json_object(body, MAX_BODY_BYTES)
        members = _members(raw, "members")
        # Without a member nobody would serve the rendezvous store.
        if not members:
            raise ContractError("members: must be a list with at least one member")
        return cls(
            job_uid=read.text(raw, "job_uid"),
            generation=read.integer(raw, "generation", low=1),
            epoch=read.integer(raw, "epoch"),
            members=members,
            image=read.text(raw, "image"),
            restore_step=read.optional_integer(raw, "restore_step"),
            restore_digest=read.text(raw, "restore_digest"),
            restarts_left=read.counts(raw, "restarts_left"),
            hang_timeout_seconds=read.optional_number(raw, "hang_timeout_seconds"),
            hold_seconds=read.optional_number(raw, "hold_seconds"),
            previous_ranks=read.optional_integer(raw, "previous_ranks"),
            companions=_members(raw, "companions"),
        )


def _members(raw: Mapping[str, Any], key: str) -> tuple[Member, ...]:
    members = tuple(map(_member, read.objects(raw, key, limit=MAX_BODY_BYTES)))
    indices = [member.index for member in members]
    # Ranks follow the order of indices, so all agents must see the same order.
    if indices != sorted(set(indices)):
        raise ContractError(f"{key}: indices must be distinct and ascending")
    return members


def _member(raw: dict[str, Any]) -> Member:
    return Member(
        index=read.integer(raw, "index"),
        pod_uid=read.text(raw, "pod_uid"),
        address=read.text(raw, "address"),
        host=read.text(raw, "host"),
        ranks=read.integer(raw, "ranks"),
        node=read.text(raw, "node"),
        alias=read.text(raw, "alias"),
    )
