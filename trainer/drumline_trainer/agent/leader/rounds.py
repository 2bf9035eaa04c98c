"""One round: every member comes to rest, the leader decides where to go on from, all go.

    prepare -> inventories -> plan (pure) -> go

A round waits for every member of the record for as long as it takes: a gang that is not complete
does not train. If a member is gone for good the operator ends the wait with a new generation.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from drumline_trainer.agent.base.events import AgentEvent, log
from drumline_trainer.agent.http.client import PeerUnreachableError, fetch
from drumline_trainer.agent.http.message import HttpError, HttpRequest
from drumline_trainer.agent.protocol.inventory import Inventory, parse_inventory
from drumline_trainer.agent.protocol.leader_orders import (
    ROUNDS_PATH,
    CommittedCheckpoint,
    Go,
    Kill,
    LeaderOrder,
    Prepare,
    SnapshotSource,
    encode,
)
from drumline_trainer.agent.snapshots.catalog import newest_common_step
from drumline_trainer.contract import SIGNATURE_HEADER, ContractError, sign

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drumline_trainer.agent.base.settings import AgentSettings
    from drumline_trainer.agent.http.message import HttpResponse
    from drumline_trainer.agent.member.member import MemberAgent as OwnMember
    from drumline_trainer.agent.protocol.leader_orders import Membership
    from drumline_trainer.contract import GenerationRecord, Member

PREPARE_SECONDS = 60.0
"""A member answers when its ranks rest: it gives them a few seconds, or two steps."""
GO_SECONDS = 600.0
"""A member answers when its ranks have been started, and its missing snapshots fetched before."""
KILL_SECONDS = 5.0
"""Whoever cannot be reached for so long may be gone, and its ranks with it."""
RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 1.0
CONCURRENCY = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """Where a gang goes on from."""

    restore_step: int | None
    fetch: dict[int, tuple[SnapshotSource, ...]]
    """By index: what a member lacks."""

    @property
    def fetches_any(self) -> bool:
        """Whether any snapshot travels."""
        return any(self.fetch.values())


def plan_restore(
    record: GenerationRecord,
    inventories: Sequence[Inventory],
    *,
    saved_step: int | None,
    refused: Iterable[int] = (),
) -> RestorePlan:
    """The newest step that memory holds of every rank, unless storage has a newer one.

    Args:
        record: the gang.
        inventories: of all its members.
        saved_step: newest step known to be on storage.
        refused: steps that could not be restored from before.
    """
    shards = {
        (shard.rank, shard.step, one.index): shard for one in inventories for shard in one.shards
    }
    step = newest_common_step(
        shards.values(), world_size=record.world_size, floor=saved_step, refused=refused
    )
    if step is None:
        return RestorePlan(restore_step=None, fetch={})
    holders: dict[int, list[int]] = {}
    for rank, at_step, index in sorted(shards):
        if at_step == step:
            holders.setdefault(rank, []).append(index)
    fetch: dict[int, tuple[SnapshotSource, ...]] = {}
    for member in record.members:
        first = record.first_rank(member.index)
        fetch[member.index] = tuple(
            SnapshotSource(holder=holders[rank][0], shard=shards[rank, step, holders[rank][0]])
            for rank in range(first, first + member.ranks)
            if member.index not in holders[rank]
        )
    return RestorePlan(restore_step=step, fetch=fetch)


def newest_checkpoint_of(
    record: GenerationRecord, inventories: Iterable[Inventory]
) -> CommittedCheckpoint | None:
    """The newest checkpoint that anybody knows of: the operator, which may be late, or a pod."""
    known = [one.saved for one in inventories if one.saved is not None]
    if record.restore_step is not None:
        known.insert(0, CommittedCheckpoint(step=record.restore_step, digest=record.restore_digest))
    return max(known, key=lambda saved: saved.step, default=None)


class OrderSender:
    """The leader's voice: its own pod obeys without a network in between."""

    def __init__(
        self, record: GenerationRecord, *, own: OwnMember, settings: AgentSettings
    ) -> None:
        self._record = record
        self._own = own
        self._settings = settings
        self._gate = asyncio.Semaphore(CONCURRENCY)

    async def prepare(self, membership: Membership) -> list[Inventory]:
        """Bring all members to rest."""
        order = Prepare(generation=membership[0], attempt=membership[1])

        async def ask(member: Member) -> Inventory:
            while True:
                answer = await self.send(order, member, seconds=PREPARE_SECONDS)
                if isinstance(answer, Inventory):
                    return answer
                try:
                    return parse_inventory(answer)
                except ContractError as error:
                    log(AgentEvent.MEMBER_LOST, index=member.index, reason=str(error))
                    await asyncio.sleep(LAST_RETRY_SECONDS)

        return list(await asyncio.gather(*(ask(member) for member in self._record.members)))

    async def go(self, orders: dict[int, Go]) -> None:
        """Let all members go; returns when every rank has been started."""
        async with asyncio.TaskGroup() as group:
            for member in self._record.members:
                group.create_task(self.send(orders[member.index], member, seconds=GO_SECONDS))

    async def kill(self, order: Kill, member: Member) -> bool:
        """Have a member end ranks; False if it cannot be told, or has moved on meanwhile."""
        with suppress(TimeoutError, HttpError):
            async with asyncio.timeout(KILL_SECONDS):
                if member.index == self._settings.index:
                    await self._own.obey(order)
                    return True
                while True:
                    with suppress(PeerUnreachableError):
                        answer = await self._put(order, member, seconds=KILL_SECONDS)
                        return answer.status == HTTPStatus.OK
                    await asyncio.sleep(RETRY_SECONDS)
        return False

    async def send(
        self, order: LeaderOrder, member: Member, *, seconds: float = 5.0
    ) -> Inventory | bytes:
        """Have one member obey, however often that takes. Returns its answer."""
        if member.index == self._settings.index:
            return await self._own.obey(order) or b""
        wait, told = RETRY_SECONDS, False
        while True:
            try:
                async with self._gate:
                    answer = await self._put(order, member, seconds=seconds)
                if answer.status == HTTPStatus.OK:
                    return answer.body
                reason = answer.body[:256].decode(errors="replace")
            except PeerUnreachableError as error:
                reason = str(error)
            if not told and wait >= LAST_RETRY_SECONDS:
                told = True
                log(AgentEvent.MEMBER_LOST, index=member.index, reason=reason)
            await asyncio.sleep(wait)
            wait = min(2 * wait, LAST_RETRY_SECONDS)

    async def _put(self, order: LeaderOrder, member: Member, *, seconds: float) -> HttpResponse:
        body = encode(order)
        headers = {SIGNATURE_HEADER: sign(self._settings.token, b"round", body)}
        return await fetch(
            HttpRequest(method="PUT", path=ROUNDS_PATH, headers=headers, body=body),
            address=member.address,
            port=self._settings.port,
            seconds=seconds,
        )
