"""Departures of members: how the store's agent knows when no member needs the store any more.

An agent whose ranks have ended reports its exit code to the store's agent before it exits. The
store's agent stays until every other member has reported, or has been unreachable for
`peer_lost_seconds`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any

from drumline_agent.base.change_notifier import ChangeNotifier
from drumline_agent.base.events import AgentEvent, log
from drumline_agent.http.client import PeerUnreachableError, fetch
from drumline_agent.http.message import HttpRequest
from drumline_agent.protocol.membership import MAX_MESSAGE_BYTES
from drumline_contract import SIGNATURE_HEADER, ContractError, Member, sign
from drumline_contract import json_fields as read

PATH = "/v1/departures"
SIGNED_AS = b"departure"
RETRY_SECONDS = 0.5
PROBE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """The end of a member in one attempt."""

    index: int
    generation: int
    attempt: int
    exit_code: int

    def encode(self) -> bytes:
        """Return the JSON bytes that are sent and signed."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, body: bytes) -> Departure:
        """Read `encode`'s bytes. Raises ContractError."""
        raw = read.json_object(body, MAX_MESSAGE_BYTES)
        return cls(
            index=_integer(raw, "index"),
            generation=_integer(raw, "generation"),
            attempt=_integer(raw, "attempt"),
            exit_code=_integer(raw, "exit_code"),
        )


class Departures:
    """The departures reported so far, by membership."""

    def __init__(self) -> None:
        self._codes: dict[tuple[int, int], dict[int, int]] = {}
        self._notifier = ChangeNotifier()

    def record(self, departure: Departure) -> None:
        """Record a departure; a second report of it changes nothing."""
        codes = self._codes.setdefault((departure.generation, departure.attempt), {})
        if departure.index not in codes:
            log(AgentEvent.MEMBER_DEPARTED, **asdict(departure))
        codes[departure.index] = departure.exit_code
        self._notifier.notify()

    async def wait_for_exit_code(self, index: int, membership: tuple[int, int]) -> int:
        """Wait until a member has departed. Returns its exit code."""
        return await self._notifier.wait_for(lambda: self._codes.get(membership, {}).get(index))


async def report_departure(
    departure: Departure, *, to: Member, port: int, token: bytes, for_seconds: float
) -> bool:
    """Report to the store's agent; False if it was unreachable for `for_seconds`.

    That is not a failure: the store's agent has ended before, or its answer was lost.

    Args:
        departure: generation, attempt and exit code.
        to: the member to send to.
        port: port of the agents.
        token: the job's token, which signs messages.
        for_seconds: time after which an unreachable agent counts as ended.
    """
    body = departure.encode()
    request = HttpRequest(
        method="PUT",
        path=PATH,
        headers={SIGNATURE_HEADER: sign(token, SIGNED_AS, body)},
        body=body,
    )
    try:
        async with asyncio.timeout(for_seconds):
            while True:
                try:
                    answer = await fetch(request, address=to.address, port=port)
                except PeerUnreachableError:
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                return answer.status == HTTPStatus.OK
    except TimeoutError:
        return False


async def wait_for_departures(
    departures: Departures,
    *,
    members: Iterable[Member],
    membership: tuple[int, int],
    port: int,
    lost_seconds: float,
) -> None:
    """Wait until every member has departed or has been unreachable for `lost_seconds`.

    Args:
        departures: reports that have arrived.
        members: members to wait for.
        membership: generation and attempt.
        port: port of the agents.
        lost_seconds: time after which an unreachable member counts as ended.
    """
    async with asyncio.TaskGroup() as group:
        for member in members:
            group.create_task(
                _wait_for_departure(
                    departures,
                    member=member,
                    membership=membership,
                    port=port,
                    lost_seconds=lost_seconds,
                )
            )


async def _wait_for_departure(
    departures: Departures,
    *,
    member: Member,
    membership: tuple[int, int],
    port: int,
    lost_seconds: float,
) -> None:
    clock = asyncio.get_running_loop().time
    answered = clock()
    while clock() - answered < lost_seconds:
        try:
            async with asyncio.timeout(min(PROBE_SECONDS, lost_seconds)):
                await departures.wait_for_exit_code(member.index, membership)
        except TimeoutError:
            if await _answers(member, port=port):
                answered = clock()
        else:
            return
    log(AgentEvent.MEMBER_LOST, index=member.index, address=member.address)


async def _answers(member: Member, *, port: int) -> bool:
    try:
        await fetch(HttpRequest(method="GET", path="/healthz"), address=member.address, port=port)
    except PeerUnreachableError:
        return False
    return True


def _integer(raw: dict[str, Any], name: str) -> int:
    value = raw.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ContractError(f"{name}: must be an integer")
    return value
