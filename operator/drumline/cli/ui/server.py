"""The page's server: loopback only, behind a secret path.

Anybody on the machine, and any web page in the browser, can reach a port of loopback. So every path
begins with a secret of 256 bits that only the printed address has; a request for another host name
(DNS rebinding), or one that another page sends (Origin, Sec-Fetch-Site), is refused. No cookies, as
browsers send these to every port. Content is markup that escapes by construction; the policy lets a
browser run only the one script and the styles that are served here.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Final

from aiohttp import web

from drumline.cli.errors import CommandError
from drumline.cli.ui import history_pages, pages
from drumline.cli.ui.archive_source import ArchiveSource
from drumline.cli.ui.cluster_source import ClusterSource

HOST: Final = "127.0.0.1"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_ASSETS: Final = {
    "report.css": ("drumline.cli.report", "text/css"),
    "ui.css": ("drumline.cli.ui", "text/css"),
    "live.js": ("drumline.cli.ui", "text/javascript"),
}
_ACTIONS: Final = {"suspend": True, "resume": False}
_MOST_BODY_BYTES: Final = 1024
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serve(
    source: ClusterSource, *, archive: ArchiveSource | None = None, port: int, secret: str
) -> AsyncGenerator[str]:
    """Serve until the context ends; yields the address.

    Args:
        source: what is shown.
        archive: what is shown of jobs that have ended; None: no page of them.
        port: of loopback; 0 takes a free one.
        secret: what every path begins with.

    Raises:
        OSError: the port is taken.
    """
    app = application(source, archive=archive, secret=secret)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, port)
        await site.start()
        yield f"http://{HOST}:{runner.addresses[0][1]}/{secret}/"
    finally:
        await runner.cleanup()


def new_secret() -> str:
    """256 bits."""
    return secrets.token_urlsafe(32)


def application(
    source: ClusterSource, *, archive: ArchiveSource | None = None, secret: str
) -> web.Application:
    """The routes, behind the guards."""
    app = web.Application(middlewares=[_guard(secret)], client_max_size=_MOST_BODY_BYTES)

    async def overview(_request: web.Request) -> web.Response:
        return _page(pages.overview(await source.cluster(), archive=archive is not None))

    async def job(request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        job_input = await source.job(namespace, name)
        return _page(pages.job(job_input, await source.cluster()))

    async def act(request: web.Request) -> web.Response:
        action = request.match_info["action"]
        if action not in _ACTIONS:
            raise web.HTTPNotFound
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        await source.suspend(namespace, name, suspend=_ACTIONS[action])
        raise web.HTTPSeeOther(f"/{secret}/job/{namespace}/{name}")

    app.router.add_get("/{secret}/", overview)
    app.router.add_get("/{secret}/asset/{name}", _asset)
    app.router.add_get("/{secret}/job/{namespace}/{name}", job)
    if archive is not None:
        _add_history(app, archive)
    app.router.add_post("/{secret}/job/{namespace}/{name}/{action}", act)
    return app


def _add_history(app: web.Application, archive: ArchiveSource) -> None:
    async def history(_request: web.Request) -> web.Response:
        return _page(history_pages.history(await archive.ended(), now=time.time()))

    async def ended(request: web.Request) -> web.Response:
        names = (request.match_info[part] for part in ("namespace", "name", "uid"))
        return _page(history_pages.ended_job(await archive.job(*names)))

    app.router.add_get("/{secret}/history", history)
    app.router.add_get("/{secret}/history/{namespace}/{name}/{uid}", ended)


def _guard(secret: str) -> Callable[..., Awaitable[web.StreamResponse]]:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _check(request, secret=secret)
            answer = await handler(request)
        except web.HTTPException as error:
            error.headers.update(_HEADERS)
            raise
        except CommandError as error:
            answer = _page(pages.refused(str(error)), status=502)
        answer.headers.update(_HEADERS)
        return answer

    return guard


def _check(request: web.Request, *, secret: str) -> None:
    """Refuse what did not come from a page of ours, or from the printed address.

    Raises:
        HTTPException: what the browser is told.
    """
    given = request.path.split("/")[1]
    if not secrets.compare_digest(given.encode(), secret.encode()):
        raise web.HTTPNotFound
    host = request.host.rpartition(":")[0] or request.host
    if host not in {HOST, "localhost"}:
        raise web.HTTPMisdirectedRequest
    if request.method == "POST":
        origin = request.headers.get("Origin")
        site = request.headers.get("Sec-Fetch-Site", "same-origin")
        if site != "same-origin" or origin not in {f"http://{request.host}", None, "null"}:
            raise web.HTTPForbidden


async def _asset(request: web.Request) -> web.Response:
    known = _ASSETS.get(request.match_info["name"])
    if known is None:
        raise web.HTTPNotFound
    package, kind = known
    text = files(package).joinpath(request.match_info["name"]).read_text(encoding="utf-8")
    return web.Response(text=text, content_type=kind, charset="utf-8")


def _page(document: str, *, status: int = 200) -> web.Response:
    answer = web.Response(text=document, content_type="text/html", charset="utf-8", status=status)
    answer.enable_compression()
    return answer
