"""The leader's end of the clients of all ranks: what they say arrives, what is decided goes out.

Orders reach each member in the order in which they were decided: a rank must hear of a proposal
before its outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from drumline_agent.base.events import AgentEvent, log
from drumline_agent.leader.client_saves import ClientSaves, SaveAnswer
from drumline_agent.leader.order_sender import OrderSender
from drumline_agent.leader.save_round import Order, SaveRequest, lead_steps
from drumline_agent.protocol.client_messages import ClientMessages, ConnectionClosed
from drumline_agent.protocol.leader_orders import CheckpointSaved, ClientOrder, Finish
from drumline_agent.protocol.membership import NO_MEMBERSHIP, Membership
from drumline_agent.rank_protocol.orders import SaveNotice
from drumline_agent.state.notices import is_of_a_pod
from drumline_agent.state.rank_status import RankStatusStore
from drumline_client.wire import ClientMessage, SaveAgreed, SaveProposal, encode
from drumline_contract import GenerationRecord, Member

MAX_UNSENT = 1024
"""Orders for a member that cannot be reached; then the oldest are dropped."""

FOLLOWERS_SECONDS = 5.0
"""Maximum wait before the last order of an attempt takes effect here, until all members have it."""


class ClientCoordinator:
    """Coordination of all clients by the leader of one generation.

    Args:
        record: the generation record.
        orders: sends orders to the members.
        status: status of this pod's ranks.
        own_index: index of this pod's member.
    """

    def __init__(
        self,
        record: GenerationRecord,
        *,
        orders: OrderSender,
        status: RankStatusStore,
        own_index: int,
    ) -> None:
        self._record = record
        self._own_index = own_index
        self._orders = orders
        self._status = status
        self._membership = NO_MEMBERSHIP
        self._saves: ClientSaves | None = None
        self._queues: dict[int, asyncio.Queue[ClientOrder | CheckpointSaved]] = {}

    def handle(self, rank: int, message: ClientMessage | ConnectionClosed) -> None:
        """Handle a message from a client of this pod."""
        if self._saves is None:
            return
        self._saves.handle(rank, message)
        if self._saves.will_ask and not self._status.acknowledges_saves:
            self._status.acknowledges_saves = True
            self._status.publish()

    def handle_member(self, messages: ClientMessages) -> None:
        """Handle what another member's clients sent; messages of another attempt are dropped."""
        if messages.membership == self._membership:
            for said in messages.decoded():
                self.handle(said.rank, said.message)

    def request(self, notice: SaveNotice) -> None:
        """Make the ranks save. Before the end of a pod they also leave."""
        if self._saves is not None:
            leave = notice.leave or is_of_a_pod(notice.id)
            self._saves.request(SaveRequest(id=notice.id, leave=leave, reason=_reason(notice)))

    def withdraw(self, notice_id: str) -> None:
        """Drop the request with this id."""
        if self._saves is not None:
            self._saves.withdraw(notice_id)

    async def coordinate(self, membership: Membership) -> Finish:
        """Serve the clients of one attempt, until cancelled: it never returns."""
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []

        # Timers are kept to cancel them with the attempt, and pruned so that they do not pile up.
        def call_later(seconds: float, callback: Callable[[], None]) -> None:
            timers[:] = [timer for timer in timers if timer.when() > loop.time()]
            timers.append(loop.call_later(seconds, callback))

        # Queues, proposals and timers belong to one attempt. A later attempt starts from nothing.
        self._membership = membership
        self._queues = {
            member.index: asyncio.Queue(maxsize=MAX_UNSENT) for member in self._record.members
        }
        self._saves = ClientSaves(
            send=self._relay,
            answer=self._announce,
            call_later=call_later,
            lead_steps=self._lead_steps,
            will_ask=self._status.acknowledges_saves,
        )
        # Deliver until this attempt is cancelled, one task per member: a slow member delays no
        # other.
        try:
            async with asyncio.TaskGroup() as group:
                for member in self._record.members:
                    group.create_task(self._deliver(member))
                return await loop.create_future()
        finally:
            self._saves = None
            for timer in timers:
                timer.cancel()

    async def _deliver(self, member: Member) -> None:
        queue, is_own = self._queues[member.index], member.index == self._own_index
        while True:
            order = await queue.get()
            if is_own and isinstance(order, CheckpointSaved) and order.leave:
                await self._reach_followers()
            await self._orders.send(order, member)
            queue.task_done()

    async def _reach_followers(self) -> None:
        """Wait until the followers have the last order.

        Only this pod sends it, and this pod may end with it.
        """
        followers = [queue for index, queue in self._queues.items() if index != self._own_index]
        with suppress(TimeoutError):
            async with asyncio.timeout(FOLLOWERS_SECONDS):
                await asyncio.gather(*(queue.join() for queue in followers))

    def _relay(self, order: Order) -> None:
        if isinstance(order, SaveProposal):
            log(AgentEvent.SAVE_PROPOSED, id=order.id, step=order.step, leave=order.leave)
        elif isinstance(order, SaveAgreed):
            log(AgentEvent.SAVE_AGREED, id=order.id)
        generation, attempt = self._membership
        line = encode(order).decode()
        self._put(ClientOrder(generation=generation, attempt=attempt, line=line))

    def _announce(self, answer: SaveAnswer) -> None:
        request = answer.request
        log(
            AgentEvent.CHECKPOINT_REPORTED,
            id="" if request is None else request.id,
            step=answer.step,
            path=answer.path,
            error=answer.error,
        )
        generation, attempt = self._membership
        self._put(
            CheckpointSaved(
                generation=generation,
                attempt=attempt,
                step=answer.step,
                path=answer.path,
                notice="" if request is None else request.id,
                leave=request is not None and request.leave,
                error=answer.error,
            )
        )

    def _put(self, order: ClientOrder | CheckpointSaved) -> None:
        for queue in self._queues.values():
            if queue.full():
                queue.get_nowait()
                queue.task_done()
            queue.put_nowait(order)

    def _lead_steps(self) -> int:
        usual = self._status.step_seconds
        return lead_steps([] if usual is None else [usual])


def _reason(notice: SaveNotice) -> str:
    if is_of_a_pod(notice.id):
        return "a pod ends"
    return "the pods are given back" if notice.leave else "a checkpoint is asked for"
