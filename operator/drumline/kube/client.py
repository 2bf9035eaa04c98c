"""One HTTP client for the whole process: deadlines, retries, typed errors, and the fence.

Reads and writes have pools of their own. Reads (and watches, one connection each) are unlimited;
at most `write_limit` writes are under way, the others queue *before* the fence is asked, so that
no write leaves the process later than one deadline after its check. The same deadline travels as
the `timeout` parameter, after which the server drops the request too: together they make the
leader's fence sound (see `lease`). A renewal of the lease itself is unfenced and bypasses the
queue.

Every request may be repeated: names are deterministic, updates conditional, deletes name a uid.
What a repeated write can answer is said in `errors`.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Final, Protocol, Self

import aiohttp

from drumline.kube import errors
from drumline.kube.credentials import Credentials
from drumline.kube.request import JSON, Request, Verb
from drumline.kube.retry import RetryPolicy

READ_DEADLINE_SECONDS: Final = 30.0
WRITE_DEADLINE_SECONDS: Final = 5.0
"""How long after its check at the fence a write may still take effect."""
NO_ANSWER: Final = 0
"""The code observed for a request that got no answer."""
_CONNECT_SECONDS: Final = 5.0
_KEPT_SECONDS: Final = 60.0
"""How long an idle connection is kept. The API server closes it after 90 s (`IdleTimeout` in
apiserver/pkg/server/secure_serving.go), as Go's clients do: whoever sends at that moment gets no
answer, so this stays well below. The pods of a gang leave on as many connections as there are
slots, and each new one costs a TLS handshake."""
_FORGETS_CONNECTIONS: Final = sys.version_info < (3, 12)
"""TLS closes an abandoned exchange after its session has dropped it: the end of the session would
leave the socket open. Later Pythons need no help, and aiohttp warns when it is asked for."""


class Observe(Protocol):
    """Receives every attempt for telemetry; `code` is NO_ANSWER where none came."""

    def __call__(self, *, verb: Verb, resource: str, code: int, seconds: float) -> None:
        """One attempt ended."""


class Fence(Protocol):
    """Asked before every write leaves; raises `NotLeader` when this process may not write."""

    def __call__(self) -> None:
        """Return, or raise `NotLeader`."""


class KubeClient:
    """The API server, as one identity. Use it as an async context manager.

    Args:
        credentials: The identity of this process, and the server's address.
        fence: Asked before every write; the default lets all pass (tests, tools).
        observe: Called with every attempt; the default ignores it.
        retry: How often a request is sent again.
        write_limit: How many writes may be under way.
        user_agent: What the server's logs call us.
        jitter: Where the spread of the pauses comes from.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        fence: Fence = lambda: None,
        observe: Observe | None = None,
        retry: RetryPolicy | None = None,
        write_limit: int = 64,
        user_agent: str = "drumline",
        jitter: random.Random | None = None,
    ) -> None:
        self._credentials = credentials
        self._fence = fence
        self._observe = observe or _ignore
        self._retry = retry or RetryPolicy()
        self._write_limit = write_limit
        self._write_slots = asyncio.Semaphore(write_limit)
        self._user_agent = user_agent
        self._jitter = jitter or random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._stack = AsyncExitStack()
        self._reads: aiohttp.ClientSession
        self._writes: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        context: ssl.SSLContext | None = None
        if self._credentials.server.startswith("https:"):
            context = await asyncio.to_thread(self._credentials.ssl_context)
        self._reads = await self._stack.enter_async_context(self._session(context, limit=0))
        self._writes = await self._stack.enter_async_context(
            self._session(context, limit=self._write_limit)
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def send(self, request: Request) -> bytes:
        """Send a request, again after retryable failures, and return the body of the answer.

        Args:
            request: What to send.

        Raises:
            KubeError: The last attempt's failure, typed as `errors` draws it.
        """
        policy = request.sending.retry or self._retry
        attempt = 0
        renewed = maybe_done = False
        while True:
            attempt += 1
            try:
                return await self._attempt(request)
            except errors.KubeError as error:
                maybe_done |= not request.reads and _leaves_doubt(error)
                error.maybe_done = maybe_done
                token = self._credentials.token
                if isinstance(error, errors.Unauthorized) and token.renewable and not renewed:
                    renewed = True
                    token.forget()
                    continue
                pause = policy.pause_seconds(error, attempt=attempt, jitter=self._jitter)
                if pause is None:
                    raise
                await asyncio.sleep(pause)

    @asynccontextmanager
    async def stream(
        self,
        request: Request,
        *,
        silence_seconds: float,
    ) -> AsyncGenerator[AsyncGenerator[bytes]]:
        """Open a watch; yields its chunks as they come, of any size, cut anywhere.

        Args:
            request: A request with the verb WATCH.
            silence_seconds: A pause between two chunks after which the stream counts as broken.

        Raises:
            KubeError: The watch was refused, broke off, or fell silent. Its plain end is no error.
        """
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_SECONDS, sock_read=silence_seconds
        )
        started = time.monotonic()
        try:
            async with self._open(self._reads, request, timeout=timeout) as response:
                self._note(request, code=response.status, started=started)
                await self._raise_for_status(response)
                chunks = _chunks(response)
                try:
                    yield chunks
                finally:
                    await chunks.aclose()
        except errors.Unauthorized:
            self._credentials.token.forget()
            raise
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unreachable(error) from error

    def _session(self, context: ssl.SSLContext | None, *, limit: int) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=limit,
                ssl=context or True,
                keepalive_timeout=_KEPT_SECONDS,
                enable_cleanup_closed=_FORGETS_CONNECTIONS,
            ),
            # Compressing big lists costs CPU on both sides of a local network.
            headers={
                "Accept": JSON,
                "Accept-Encoding": "identity",
                "User-Agent": self._user_agent,
            },
            read_bufsize=1 << 18,
        )

    async def _attempt(self, request: Request) -> bytes:
        if request.reads or not request.sending.fenced:
            return await self._exchange(self._reads, request)
        async with self._write_slots:
            # A token may take its time; nothing may stand between the fence and the request.
            await self._credentials.token.current()
            self._fence()
            return await self._exchange(self._writes, request)

    async def _exchange(
        self,
        session: aiohttp.ClientSession,
        request: Request,
    ) -> bytes:
        started = time.monotonic()
        code = NO_ANSWER
        timeout = aiohttp.ClientTimeout(total=_deadline(request), sock_connect=_CONNECT_SECONDS)
        try:
            async with self._open(session, request, timeout=timeout) as response:
                code = response.status
                await self._raise_for_status(response)
                return await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            code = NO_ANSWER
            raise _unreachable(error) from error
        finally:
            self._note(request, code=code, started=started)

    @asynccontextmanager
    async def _open(
        self,
        session: aiohttp.ClientSession,
        request: Request,
        *,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own value, not a deadline
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        headers = [*self._credentials.impersonation]
        if (token := await self._credentials.token.current()) is not None:
            headers.append(("Authorization", f"Bearer {token}"))
        if request.sending.purpose:
            headers.append(("User-Agent", f"{self._user_agent}/{request.sending.purpose}"))
        if request.body is not None:
            headers.append(("Content-Type", request.content_type))
        query = dict(request.query)
        if not request.reads:
            query["timeout"] = f"{_deadline(request):g}s"
        async with session.request(
            request.method,
            self._credentials.server + request.path,
            params=query,
            data=request.body,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
        ) as response:
            yield response

    @staticmethod
    async def _raise_for_status(response: aiohttp.ClientResponse) -> None:
        if not 200 <= response.status < 300:
            raise errors.from_answer(
                code=response.status,
                body=await response.read(),
                retry_after=response.headers.get("Retry-After"),
            )

    def _note(self, request: Request, *, code: int, started: float) -> None:
        self._observe(
            verb=request.verb,
            resource=request.resource.plural,
            code=code,
            seconds=time.monotonic() - started,
        )


async def _chunks(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    async for chunk in response.content.iter_any():
        yield chunk


def _deadline(request: Request) -> float:
    ours = READ_DEADLINE_SECONDS if request.reads else WRITE_DEADLINE_SECONDS
    asked = request.sending.deadline_seconds
    return ours if asked is None else asked


def _leaves_doubt(error: errors.KubeError) -> bool:
    """Whether a request that failed like this may have been carried out."""
    if isinstance(error, errors.Unreachable):
        return error.sent
    return isinstance(error, errors.ServerError)


def _ignore(*, verb: Verb, resource: str, code: int, seconds: float) -> None:
    del verb, resource, code, seconds


def _unreachable(error: BaseException) -> errors.Unreachable:
    message = f"{type(error).__name__}: {error}" if str(error) else repr(error)
    unsent = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
    return errors.Unreachable(message, sent=not isinstance(error, unsent))
