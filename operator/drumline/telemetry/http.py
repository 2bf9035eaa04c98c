"""/healthz, /readyz and /metrics.

Healthy: the event loop answers and no watch has been silent for too long; a kubelet restarts a
process that runs but whose watches are dead. Ready: the caches are synced.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

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
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


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
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=render(), content_type="text/plain", charset="utf-8")

    return answer
