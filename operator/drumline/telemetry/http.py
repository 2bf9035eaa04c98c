"""/healthz, /readyz and /metrics.

Healthy: the event loop answers and no watch has been silent for too long; a kubelet restarts a
process that runs but whose watches are dead. Ready: the caches are synced.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from drumline.telemetry.listener import listening

_STOP_SECONDS: Final = 2.0
_FRESH_SECONDS: Final = 0.25
"""Anybody may read metrics, and each rendering holds the event loop for milliseconds."""
Check = Callable[[], str | None]
"""Returns None if healthy, otherwise a sentence that names the problem."""


@asynccontextmanager
async def serve(
    *, host: str, port: int, metrics: Callable[[], bytes], healthy: Check, ready: Check
) -> AsyncGenerator[int]:
    """Serve until the context ends. Yield the port, which the system chose if `port` is 0.

    Args:
        host: address to listen on.
        port: 0 lets the system choose.
        metrics: the exposition text for /metrics.
        healthy: check for /healthz.
        ready: check for /readyz.
    """
    app = web.Application()
    app.router.add_get("/healthz", _probe(healthy))
    app.router.add_get("/readyz", _probe(ready))
    app.router.add_get("/metrics", _metrics(metrics))
    async with listening(app, host=host, port=port, stop_seconds=_STOP_SECONDS) as taken:
        yield taken


def _probe(check: Check) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_request: web.Request) -> web.Response:
        problem = check()
        return (
            web.Response(text="ok\n")
            if problem is None
            else web.Response(status=503, text=f"{problem}\n")
        )

    return answer


def _metrics(render: Callable[[], bytes]) -> Callable[[web.Request], Awaitable[web.Response]]:
    body, fresh_until = b"", float("-inf")

    async def answer(_request: web.Request) -> web.Response:
        nonlocal body, fresh_until
        now = asyncio.get_running_loop().time()
        if now >= fresh_until:
            body, fresh_until = render(), now + _FRESH_SECONDS
        return web.Response(body=body, content_type="text/plain", charset="utf-8")

    return answer
