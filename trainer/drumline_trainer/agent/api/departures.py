"""Who has left the gang: how the store's agent knows when nobody needs the store any more.

An agent whose ranks ended tells the store's agent its exit code before it exits. The store's agent
stays until each other member has said so, or has answered nobody for `peer_lost_seconds`.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from drumline_trainer.agent.base.change_notifier import ChangeNotifier
from drumline_trainer.agent.base.events import AgentEvent, log
from drumline_trainer.agent.http.client import PeerUnreachableError, fetch
from drumline_trainer.agent.http.message import HttpRequest
from drumline_trainer.contract import SIGNATURE_HEADER, ContractError, Member, sign

if TYPE_CHECKING:
    from collections.abc import Iterable

PATH = "/v1/departures"
SIGNED_AS = b"departure"
RETRY_SECONDS = 0.5
PROBE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """The last word of one member in one attempt."""

    index: int
    generation: int
    attempt: int
    exit_code: int

    def encode(self) -> bytes:
        """JSON bytes: what is sent and signed."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, body: bytes) -> Departure:
        """Read `encode`'s bytes. Raises ContractError."""
        try:
            raw: Any = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ContractError(f"not JSON: {error}") from None
        names = ("index", "generation", "attempt", "exit_code")
        if not isinstance(raw, dict) or any(type(raw.get(name)) is not int for name in names):
            raise ContractError(f"must be an object with the integers {', '.join(names)}")
        return cls(**{name: raw[name] for name in names})


class Departures:
    """Departures heard of, by membership."""

    def __init__(self) -> None:
        self._codes: dict[tuple[int, int], dict[int, int]] = {}
        self._bell = ChangeNotifier()

    def record(self, departure: Departure) -> None:
        """Write one down; hearing it twice is the same as once."""
        codes = self._codes.setdefault((departure.generation, departure.attempt), {})
        if departure.index not in codes:
            log(AgentEvent.MEMBER_DEPARTED, **asdict(departure))
        codes[departure.index] = departure.exit_code
        self._bell.notify()

    async def wait_for_exit_code(self, index: int, membership: tuple[int, int]) -> int:
        """Exit code of one member, once it has left."""
        return await self._bell.wait_for(lambda: self._codes.get(membership, {}).get(index))


async def report_departure(
    departure: Departure, *, to: Member, port: int, token: bytes, for_seconds: float
) -> bool:
    """Tell the store's agent; False if it could not be reached for `for_seconds`.

    Not reaching it is no failure of ours: it went away before us, or after it had heard us and its
    answer was lost.
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
    """Return once every member has left or has been unreachable for `lost_seconds`."""
    async with asyncio.TaskGroup() as group:
        for member in members:
            group.create_task(
                _departed(
                    departures,
                    member=member,
                    membership=membership,
                    port=port,
                    lost_seconds=lost_seconds,
                )
            )


async def _departed(
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
