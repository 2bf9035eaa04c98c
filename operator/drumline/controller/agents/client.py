"""HTTP client for the agents' API.

An agent's answer is tenant input. It must state its length, at most `MAX_STATUS_BYTES` of it are
read, the contract parses it, and accounting trusts none of it. Redirects are not followed. The
callers (`watch`, `deliveries`) limit the concurrent requests of each job. A request never waits for
a request of another job.
"""

from __future__ import annotations

import json
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
"""A dead node does not even refuse a connection, so the client must give up soon."""


class OtherMembersError(Exception):
    """The agent holds the same generation with other members than the record."""


class AgentError(Exception):
    """An agent did not answer, or its answer breaks the contract. A retry may help."""


class AgentClient:
    """Push records and notices to agents and read their statuses. An async context manager.

    Args:
        port: the agents' port. Only tests use another one.
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

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def push(self, record: GenerationRecord, *, token: bytes) -> None:
        """Send a record to the agent that serves the store, which forwards it. Idempotent.

        Raises:
            AgentError: the agent is not reachable, or it rejected the record.
            OtherMembersError: the agent holds this generation with other members.
        """
        body = record.encode()
        headers = {SIGNATURE_HEADER: sign(token, b"record", body)}
        address = record.store_member.address
        status, answer = await self._exchange("PUT", address, "/v1/record", headers, body)
        # A 409 with the same generation means that the members differ. The caller must raise the
        # generation. A retry cannot help.
        if status == 409 and _known_generation(answer) == record.generation:
            raise OtherMembersError(f"agent at {address} has other members")
        if status != 200:
            text = answer[:200].decode(errors="replace")
            raise AgentError(f"agent at {address} refused the record: {status} {text}")

    async def notify(self, address: str, notice: Notice, *, token: bytes) -> None:
        """Send a save notice, or its withdrawal, to the leader at `address`. Idempotent.

        Args:
            address: IP address of the leader's pod.
            notice: what to save, and until when.
            token: the job's token, which signs the notice.

        Raises:
            AgentError: the agent is not reachable, or it rejected the notice.
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
        """Read the status of the agent at `address`, at once or when there is news.

        Args:
            address: address of the pod.
            token: signing token of the job.
            since: version that the caller knows. With it, the answer may take `wait_seconds`.
            wait_seconds: time for which the agent may hold the request without news.

        Raises:
            AgentError: the agent is not reachable, or its answer breaks the contract.
        """
        # The signature covers the path without the query, so `since` and `wait` stay outside of it.
        path = "/v1/status"
        headers = {SIGNATURE_HEADER: sign(token, b"get", path.encode())}
        if since is None:
            status, answer = await self._exchange("GET", address, path, headers, None)
        else:
            # Long poll. The time limit must exceed the time for which the agent holds the request.
            path = f"{path}?since={since}&wait={wait_seconds:.3f}"
            patience = wait_seconds + CONNECT_SECONDS
            status, answer = await self._send("GET", address, path, headers, None, patience)
        if status != 200:
            raise AgentError(f"agent at {address} answered {status}")
        # Everything in the answer is tenant input. The contract's parser bounds it.
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
        # An IPv6 address needs brackets in a URL.
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
    # The body of a 409 is tenant input: any JSON value, or none, is possible.
    try:
        known: object = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    generation = (
        cast("dict[str, Any]", known).get("generation") if isinstance(known, dict) else None
    )
    return generation if isinstance(generation, int) else None


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    """Read the whole body, or its first `MAX_STATUS_BYTES` + 1 bytes.

    One read may return less than has arrived, so it loops. The extra byte lets the contract's
    parser reject a body that is too long.
    """
    answer = b""
    while len(answer) <= MAX_STATUS_BYTES:
        chunk = await content.read(MAX_STATUS_BYTES + 1 - len(answer))
        if not chunk:
            break
        answer += chunk
    return answer
