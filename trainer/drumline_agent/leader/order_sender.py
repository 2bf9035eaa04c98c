"""Sends the leader's orders to the members of its gang.

    Prepare -> inventories -> restore plan -> Go

A round waits for every member of the record for as long as it takes: an incomplete gang does not
train. Where a member is lost the operator ends the wait with a new generation.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from http import HTTPStatus

from drumline_agent.base.events import AgentEvent, log
from drumline_agent.base.settings import AgentSettings
from drumline_agent.http.client import PeerUnreachableError, fetch
from drumline_agent.http.message import HttpError, HttpRequest, HttpResponse
from drumline_agent.member.member import MemberAgent
from drumline_agent.protocol.encoding import encode
from drumline_agent.protocol.inventory import Inventory, parse_inventory
from drumline_agent.protocol.leader_orders import (
    ROUNDS_PATH,
    Go,
    Kill,
    LeaderOrder,
    Prepare,
    ShowStacks,
)
from drumline_agent.protocol.membership import Membership
from drumline_agent.protocol.rank_stacks import RankStack, RankStacks, parse_rank_stacks
from drumline_contract import SIGNATURE_HEADER, ContractError, GenerationRecord, Member, sign

PREPARE_SECONDS = 60.0
"""A member answers once its ranks are quiesced: it gives them a few seconds, or two steps."""
GO_SECONDS = 600.0
"""A member answers once it has fetched its missing snapshots and started its ranks."""
KILL_SECONDS = 5.0
"""Time after which an unreachable member may be lost, and its ranks with it."""
PLACES_SECONDS = 6.0
"""A member answers once its ranks have printed their stacks (`commands.stack_dump`)."""
RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 1.0
CONCURRENCY = 256


class OrderSender:
    """Delivers orders; to the leader's own pod without a network in between.

    Args:
        record: the generation record.
        own: the agent of this pod's ranks.
        settings: settings of the agent.
    """

    def __init__(
        self, record: GenerationRecord, *, own: MemberAgent, settings: AgentSettings
    ) -> None:
        self._record = record
        self._own = own
        self._settings = settings
        self._gate = asyncio.Semaphore(CONCURRENCY)

    async def prepare(self, membership: Membership) -> list[Inventory]:
        """Make all members quiesce their ranks. Return their inventories."""
        order = Prepare(generation=membership[0], attempt=membership[1])

        async def ask(member: Member) -> Inventory:
            while True:
                answer = await self.send(order, member, seconds=PREPARE_SECONDS)
                if isinstance(answer, Inventory):
                    return answer
                try:
                    return parse_inventory(answer)
                # A member of another version may answer after an update: keep asking.
                except ContractError as error:
                    log(AgentEvent.MEMBER_LOST, index=member.index, reason=str(error))
                    await asyncio.sleep(LAST_RETRY_SECONDS)

        return list(await asyncio.gather(*(ask(member) for member in self._record.members)))

    async def go(self, orders: dict[int, Go]) -> None:
        """Make all members start their ranks. Return once all members have."""
        async with asyncio.TaskGroup() as group:
            for member in self._record.members:
                group.create_task(self.send(orders[member.index], member, seconds=GO_SECONDS))

    async def kill(self, order: Kill, member: Member) -> bool:
        """Make a member kill ranks. Return False if it is unreachable or in another membership."""
        with suppress(TimeoutError, HttpError):
            async with asyncio.timeout(KILL_SECONDS):
                if member.index == self._settings.index:
                    await self._own.obey(order)
                    return True
                # Only unreachability is retried. Any answer means that the agent has decided.
                while True:
                    with suppress(PeerUnreachableError):
                        answer = await self._put(order, member, seconds=KILL_SECONDS)
                        return answer.status == HTTPStatus.OK
                    await asyncio.sleep(RETRY_SECONDS)
        return False

    async def places(self, membership: Membership) -> list[RankStack]:
        """Return where the ranks of all members are, as far as they show it. It ends them."""
        order = ShowStacks(generation=membership[0], attempt=membership[1])

        async def ask(member: Member) -> tuple[RankStack, ...]:
            # Advice for people: a member that does not answer in time is left out.
            with suppress(TimeoutError, HttpError, PeerUnreachableError, ContractError):
                async with asyncio.timeout(PLACES_SECONDS), self._gate:
                    if member.index == self._settings.index:
                        answer = await self._own.obey(order)
                        return answer.places if isinstance(answer, RankStacks) else ()
                    response = await self._put(order, member, seconds=PLACES_SECONDS)
                    if response.status == HTTPStatus.OK:
                        return parse_rank_stacks(response.body).places
            return ()

        answers = await asyncio.gather(*(ask(member) for member in self._record.members))
        return [place for places in answers for place in places]

    async def send(
        self, order: LeaderOrder, member: Member, *, seconds: float = 5.0
    ) -> Inventory | bytes:
        """Send an order until the member has obeyed it. Returns its answer.

        Args:
            order: the order.
            member: the receiver.
            seconds: time limit.
        """
        if member.index == self._settings.index:
            own = await self._own.obey(order)
            return own if isinstance(own, Inventory) else b""
        wait, logged = RETRY_SECONDS, False
        while True:
            try:
                # Bounds open connections in gangs of thousands of pods.
                async with self._gate:
                    answer = await self._put(order, member, seconds=seconds)
                if answer.status == HTTPStatus.OK:
                    return answer.body
                reason = answer.body[:256].decode(errors="replace")
            except PeerUnreachableError as error:
                reason = str(error)
            # Once, after the retries have slowed down: a pod that starts is unreachable for a
            # moment.
            if not logged and wait >= LAST_RETRY_SECONDS:
                logged = True
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
