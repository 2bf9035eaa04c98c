"""Serve the page in the cluster for many people, without any rights of its own.

The server listens on all addresses of its pod. A proxy terminates TLS. No request is logged.
"""

from __future__ import annotations

import asyncio
import signal

from aiohttp import web

from drumline.controller.queues.conversion import policy_of
from drumline.settings import Settings
from drumline.telemetry import logs
from drumline.telemetry.listener import listening
from drumline_console.ui.callers import ApiServer, TokenAccess
from drumline_console.ui.server import application

log = logs.get("drumline_console.ui.in_cluster")


def main(settings: Settings) -> None:
    """Serve until SIGTERM."""
    asyncio.run(run(settings))


async def run(settings: Settings) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = ApiServer(url=settings.api_server, ca=settings.api_server_ca)
    app = application(TokenAccess(server, policy=policy_of(settings.scheduling)))
    # The kubelet has no token, so this route needs none.
    app.router.add_get("/healthz", _alive)
    async with listening(app, host=settings.http_host, port=settings.http_port) as port:
        log.info("page_started", port=port)
        await stop.wait()
    log.info("page_stopped")


async def _alive(_request: web.Request) -> web.Response:
    """Answer the liveness probe. The API server's health is no reason for a restart."""
    return web.Response(text="ok\n")
