"""One HTTP client for the whole process: deadlines, retries, typed errors, and the fence.

Reads and writes have separate connection pools. Reads (and watches, one connection each) are
unlimited. At most `write_limit` writes are in flight, shared by namespaces (`shares`), because a
webhook may make each write of one namespace take seconds. The others wait *before* the fence is
checked, so that no write leaves the process later than one deadline after its check. The same
deadline is sent as the `timeout` parameter, after which the server drops the request too. Together
they make the leader's fence sound (see `leader_election`). A renewal of the lease itself is not
fenced and does not wait.

Every request may be repeated: names are deterministic, updates are conditional, and deletes name a
uid. `errors` describes the possible answers to a repeated write.
"""

from __future__ import annotations

import asyncio
import random
import re
import ssl
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, Protocol, Self

import aiohttp

from drumline.kube import errors
from drumline.kube.credentials import Credentials
from drumline.kube.request import JSON, Request, Verb
from drumline.kube.retry import RetryPolicy
from drumline.kube.shares import FairSlots

# The server ends a request after 60 s by default. A list that takes half of that is lost.
READ_DEADLINE_SECONDS: Final = 30.0
WRITE_DEADLINE_SECONDS: Final = 5.0
"""Time after its fence check in which a write may still take effect."""
NO_ANSWER: Final = 0
"""Code that is observed for a request without an answer."""
_CONNECT_SECONDS: Final = 5.0
# Errors of aiohttp quote the proxy's URL, which may have a password.
_USER_OF_URL: Final = re.compile(r"//[^/\s]*@")
_KEPT_SECONDS: Final = 60.0
"""Time for which an idle connection is kept.

The API server closes it after 90 s (`IdleTimeout` in apiserver/pkg/server/secure_serving.go), and
so do Go's clients. A request that is sent at that moment gets no answer, so this stays well below.
The pods of a gang are created over as many connections as there are slots, and each new connection
costs a TLS handshake.
"""
_FORGETS_CONNECTIONS: Final = sys.version_info < (3, 12)
"""TLS closes an abandoned exchange after its session has dropped it.

The end of the session would leave the socket open. Later Pythons need no help, and aiohttp warns
about this option there.
"""


# Deletes take options, not fields, so `fieldValidation` does not apply to them.
_FIELD_WRITES: Final = frozenset({Verb.CREATE, Verb.UPDATE, Verb.PATCH})


class Observe(Protocol):
    """Receives every attempt for telemetry. `code` is NO_ANSWER without an answer."""

    def __call__(self, *, verb: Verb, resource: str, code: int, seconds: float) -> None:
        """Observe the end of an attempt."""


class Fence(Protocol):
    """Called before every write. It raises `NotLeader` when this process may not write."""

    def __call__(self) -> None:
        """Return, or raise `NotLeader`."""


class KubeClient:
    """Client of the API server with one identity. Use it as an async context manager.

    Args:
        credentials: identity of this process, and the server's address.
        fence: called before every write. The default allows all (tests, tools).
        observe: called with every attempt. The default ignores it.
        retry: policy for repeated requests.
        write_limit: most concurrent writes. One namespace gets at most half of them.
        user_agent: name in the server's logs.
        strict: let the server reject unknown and repeated fields in writes. The operator leaves
            this off: its CRDs may be older than itself during an upgrade.
        jitter: random source of the pauses.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        fence: Fence = lambda: None,
        observe: Observe | None = None,
        retry: RetryPolicy | None = None,
        write_limit: int = 128,
        user_agent: str = "drumline",
        strict: bool = False,
        jitter: random.Random | None = None,
    ) -> None:
        self._credentials = credentials
        self._fence = fence
        self._observe = observe or _ignore
        self._retry = retry or RetryPolicy()
        self._write_limit = write_limit
        # The semaphore, not the pool's limit: the wait must end before the fence is checked.
        self._write_slots = FairSlots(write_limit)
        self._user_agent = user_agent
        self._strict = strict
        self._jitter = jitter or random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._stack = AsyncExitStack()
        self._reads: aiohttp.ClientSession
        self._writes: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        # A plain http server is a local proxy (`kubectl proxy`), so there is no CA to load.
        context: ssl.SSLContext | None = None
        if self._credentials.server.startswith("https:"):
            # Loading a CA bundle reads files, so it must not block the loop.
            context = await asyncio.to_thread(self._credentials.ssl_context)
        self._reads = await self._stack.enter_async_context(self._session(context, limit=0))
        self._writes = await self._stack.enter_async_context(
            self._session(context, limit=self._write_limit)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def send(self, request: Request) -> bytes:
        """Send a request, repeat it after retryable failures, and return the body of the answer.

        Args:
            request: the request.

        Raises:
            KubeError: the failure of the last attempt, with a type of `errors`.
        """
        policy = request.sending.retry or self._retry
        # One loop for both kinds of retry. A renewed token needs no pause before the next attempt.
        attempt, spent_seconds = 0, 0.0
        renewed = maybe_done = False
        while True:
            attempt += 1
            try:
                return await self._attempt(request)
            except errors.KubeError as error:
                # One attempt without an answer is enough: a later, clean failure does not undo it.
                maybe_done |= not request.reads and _leaves_doubt(error)
                error.maybe_done = maybe_done
                spent_seconds += error.seconds
                token = self._credentials.token
                # The token may have rotated. Read it again, but only once.
                if isinstance(error, errors.Unauthorized) and token.renewable and not renewed:
                    renewed = True
                    token.forget()
                    continue
                pause = policy.pause_seconds(
                    error, attempt=attempt, jitter=self._jitter, spent_seconds=spent_seconds
                )
                if pause is None:
                    raise
                spent_seconds += pause
                await asyncio.sleep(pause)

    @asynccontextmanager
    async def stream(
        self,
        request: Request,
        *,
        silence_seconds: float,
    ) -> AsyncGenerator[AsyncGenerator[bytes]]:
        """Open a watch. Yield its chunks as they arrive, of any size.

        Args:
            request: a request with the verb WATCH.
            silence_seconds: pause between two chunks after which the stream counts as broken.

        Raises:
            KubeError: the watch was rejected, broke off, or became silent. A normal end raises
                nothing. An exception of the caller's block stays as it is.
        """
        # A watch has no total deadline: the server ends it after `timeoutSeconds`.
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_SECONDS, sock_read=silence_seconds
        )
        started = time.monotonic()
        is_open = False
        try:
            async with self._open(self._reads, request, timeout=timeout) as response:
                # The attempt is observed at its headers. Counting the minutes of a watch would hide
                # slow opens.
                self._note(request, code=response.status, started=started)
                await self._raise_for_status(response)
                chunks = _chunks(response)
                is_open = True
                try:
                    yield chunks
                finally:
                    await chunks.aclose()
        except errors.Unauthorized:
            # No retry here: the informer owns the pauses of its streams.
            self._credentials.token.forget()
            raise
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # A closed pipe of the caller is an OSError too, and no fault of the server.
            if is_open and not isinstance(error, aiohttp.ClientError):
                raise
            raise _unreachable(error) from error

    # Two sessions keep a burst of 64 creates from taking the connections of watches.
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
            # More than aiohttp's 64 KiB: lists have megabytes, and each refill costs a wake-up.
            read_bufsize=1 << 18,
        )

    async def _attempt(self, request: Request) -> bytes:
        # A lease renewal uses the read pool. It must not queue behind the writes that it protects.
        if request.reads or not request.sending.fenced:
            return await self._exchange(self._reads, request)
        async with self._write_slots.hold(request.namespace):
            # Getting a token can take long. The request must follow the fence at once.
            await self._credentials.token.current()
            self._fence()
            return await self._exchange(self._writes, request)

    async def _exchange(
        self,
        session: aiohttp.ClientSession,
        request: Request,
    ) -> bytes:
        # The clock starts before the connection, so a TLS handshake counts as latency of the
        # request.
        started = time.monotonic()
        code = NO_ANSWER
        timeout = aiohttp.ClientTimeout(total=_deadline(request), sock_connect=_CONNECT_SECONDS)
        try:
            async with self._open(session, request, timeout=timeout) as response:
                code = response.status
                await self._raise_for_status(response)
                return await _body(response, most_bytes=request.most_bytes)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # A broken body after a 2xx header also counts as no answer: the write may be done.
            code = NO_ANSWER
            raise _unreachable(error, seconds=time.monotonic() - started) from error
        except errors.KubeError as error:
            error.seconds = time.monotonic() - started
            raise
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
        # The token comes before the request: reading it may block in a thread for an exec plugin.
        headers = [*self._credentials.impersonation]
        if (token := await self._credentials.token.current()) is not None:
            headers.append(("Authorization", f"Bearer {token}"))
        if request.sending.purpose:
            # The server's access log and its audit log show this name.
            headers.append(("User-Agent", f"{self._user_agent}/{request.sending.purpose}"))
        if request.body is not None:
            headers.append(("Content-Type", request.content_type))
        query = dict(request.query)
        if not request.reads:
            # The server aborts the write after this time, which bounds the fence on both sides.
            query["timeout"] = f"{_deadline(request):g}s"
        if self._strict and request.verb in _FIELD_WRITES:
            # Strict answers 400 to an unknown field. The default only sends a Warning header.
            query["fieldValidation"] = "Strict"
        async with session.request(
            request.method,
            self._credentials.server + request.path,
            params=query,
            data=request.body,
            headers=headers,
            timeout=timeout,
            # A redirect would take the request, and perhaps its token, to another host.
            allow_redirects=False,
            proxy=self._credentials.proxy,
            server_hostname=self._credentials.tls_server_name,
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


async def _body(response: aiohttp.ClientResponse, *, most_bytes: int | None) -> bytes:
    """Return the body, or raise TooLarge as soon as it is longer than `most_bytes`."""
    if most_bytes is None:
        return await response.read()
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most_bytes:
            raise errors.TooLarge(f"the answer has more than {most_bytes} bytes")
    return bytes(body)


async def _chunks(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise _unreachable(error) from error


def _deadline(request: Request) -> float:
    ours = READ_DEADLINE_SECONDS if request.reads else WRITE_DEADLINE_SECONDS
    asked = request.sending.deadline_seconds
    return ours if asked is None else asked


def _leaves_doubt(error: errors.KubeError) -> bool:
    """Return whether a request that failed like this may have taken effect."""
    # A refused connection left no bytes at the server. A reset one may have.
    if isinstance(error, errors.Unreachable):
        return error.sent
    # A 5xx may come from a proxy after the server has done the work.
    return isinstance(error, errors.ServerError)


def _ignore(*, verb: Verb, resource: str, code: int, seconds: float) -> None:
    del verb, resource, code, seconds


def _unreachable(error: BaseException, *, seconds: float = 0.0) -> errors.Unreachable:
    message = f"{type(error).__name__}: {error}" if str(error) else repr(error)
    message = _USER_OF_URL.sub("//", message)
    # Both errors come before the first byte of the request, so nothing can have taken effect.
    unsent = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
    unreachable = errors.Unreachable(message, sent=not isinstance(error, unsent))
    unreachable.seconds = seconds
    return unreachable
