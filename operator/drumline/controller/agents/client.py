"""The operator's side of the agents' HTTP API.

What an agent answers is tenant input: it states its length, at most `MAX_STATUS_BYTES` of it are
read, it is parsed by the contract, and nothing of it is trusted for accounting. No redirect is
followed. How many requests are made at a time is bounded for each job by their callers (`watch`,
`deliveries`); no request waits for one of another job.
"""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any, Self, cast

import aiohttp

from drumline_contract import (
    AGENT_PORT,
    SIGNATURE_HEADER,
    AgentStatus,
    ContractError,
    GenerationRecord,
    Notice,
    sign,
)

MAX_STATUS_BYTES = 64 * 1024
TIMEOUT_SECONDS = 3.0
CONNECT_SECONDS = 1.5
"""A dead node answers nothing, not even a refusal: the failure must be noticed soon."""


class OtherMembersError(Exception):
    """The agent knows this very generation with other members than the record has."""


class AgentError(Exception):
    """An agent did not answer, or not as the contract says; trying again later may help."""


class AgentClient:
    """Pushes records and notices, reads statuses; an async context manager.

    Args:
        port: The agents' port (another one only in tests).
    """

    def __init__(self, *, port: int = AGENT_PORT) -> None:
        self._port = port
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            auto_decompress=False,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def push(self, record: GenerationRecord, *, token: bytes) -> None:
        """Hand a record to the agent that serves the store; it forwards it. Idempotent.

        Raises:
            AgentError: not reachable, or the record was refused.
            OtherMembersError: it knows this generation with other members.
        """
        body = record.encode()
        headers = {SIGNATURE_HEADER: sign(token, b"record", body)}
        address = record.store_member.address
        status, answer = await self._exchange("PUT", address, "/v1/record", headers, body)
        if status == 409 and _known_generation(answer) == record.generation:
            raise OtherMembersError(f"agent at {address} has other members")
        if status != 200:
            text = answer[:200].decode(errors="replace")
            raise AgentError(f"agent at {address} refused the record: {status} {text}")

    async def notify(self, address: str, notice: Notice, *, token: bytes) -> None:
        """Ask the gang led by the agent at `address` to save, or take that back. Idempotent.

        Raises:
            AgentError: not reachable, or the notice was refused.
        """
        body = notice.encode()
        headers = {SIGNATURE_HEADER: sign(token, b"notice", body)}
        status, answer = await self._exchange("PUT", address, "/v1/notice", headers, body)
        if status != 200:
            text = answer[:200].decode(errors="replace")
            raise AgentError(f"agent at {address} refused the notice: {status} {text}")

    async def status(
        self,
        address: str,
        *,
        token: bytes,
        since: int | None = None,
        wait_seconds: float = 0.0,
    ) -> AgentStatus:
        """Read what the pod at `address` knows, at once or when there is news.

        Args:
            address: the pod's.
            token: the job's.
            since: the version that is known already: the answer may then take `wait_seconds`.
            wait_seconds: how long the agent is to hold the request while there is no news.

        Raises:
            AgentError: not reachable, or the answer breaks the contract.
        """
        path = "/v1/status"
        headers = {SIGNATURE_HEADER: sign(token, b"get", path.encode())}
        if since is None:
            status, answer = await self._exchange("GET", address, path, headers, None)
        else:
            path = f"{path}?since={since}&wait={wait_seconds:.3f}"
            patience = wait_seconds + CONNECT_SECONDS
            status, answer = await self._send("GET", address, path, headers, None, patience)
        if status != 200:
            raise AgentError(f"agent at {address} answered {status}")
        try:
            return AgentStatus.parse(answer)
        except ContractError as error:
            raise AgentError(f"agent at {address}: {error}") from None

    async def _exchange(
        self, method: str, address: str, path: str, headers: dict[str, str], body: bytes | None
    ) -> tuple[int, bytes]:
        return await self._send(method, address, path, headers, body, TIMEOUT_SECONDS)

    async def _send(  # noqa: PLR0917 - the parts of one request, in the order they are written
        self,
        method: str,
        address: str,
        path: str,
        headers: dict[str, str],
        body: bytes | None,
        patience_seconds: float,
    ) -> tuple[int, bytes]:
        if self._session is None:
            raise AgentError("the client is not open")
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{self._port}{path}"
        timeout = aiohttp.ClientTimeout(total=patience_seconds, sock_connect=CONNECT_SECONDS)
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, allow_redirects=False, timeout=timeout
            ) as response:
                if response.content_length is None:  # chunks of a byte cost the loop dearly
                    raise AgentError(f"agent at {address} does not state the length of its answer")
                return response.status, await _bounded(response.content)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise AgentError(f"agent at {address}: {type(error).__name__}: {error}") from None


def _known_generation(answer: bytes) -> int | None:
    try:
        known: object = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    generation = (
        cast("dict[str, Any]", known).get("generation") if isinstance(known, dict) else None
    )
    return generation if isinstance(generation, int) else None


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    """The whole body, or its first `MAX_STATUS_BYTES` + 1: one read may return less than came."""
    answer = b""
    while len(answer) <= MAX_STATUS_BYTES:
        chunk = await content.read(MAX_STATUS_BYTES + 1 - len(answer))
        if not chunk:
            break
        answer += chunk
    return answer
