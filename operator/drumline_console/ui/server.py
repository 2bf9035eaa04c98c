"""Serve the page: routes, and the headers of every response.

`PageAccess` decides who may use it. On the loopback interface, every program on the machine and
every web page in the browser can reach the port. Every path therefore begins with a secret of 256
bits, which only the printed address contains. Requests for another host name (DNS rebinding) and
requests from other pages (Origin, Sec-Fetch-Site) are rejected. Markup is escaped by construction.
The policy lets a browser run only scripts and styles that are served here.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Final

from aiohttp import web

from drumline.telemetry.listener import Handler, listening
from drumline_cli.errors import BadInput, Busy, CommandError
from drumline_cli.jobs.named_job import NamedJob
from drumline_console.ui import history_pages, pages, what_if_page
from drumline_console.ui.access import (
    LOOPBACK,
    LoopbackAccess,
    PageAccess,
    answer_of,
    form_fields,
    host_and_port,
)
from drumline_console.ui.actions import ACTIONS, JobAction
from drumline_console.ui.archive_source import ArchiveSource
from drumline_console.ui.cancellation import finish
from drumline_console.ui.cluster_source import ClusterSource

# No inline script runs, even if escaping failed somewhere.
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
    "report.css": ("drumline_cli.report", "text/css"),
    "ui.css": ("drumline_console.ui", "text/css"),
    "live.js": ("drumline_console.ui", "text/javascript"),
    "what-if.js": ("drumline_console.ui", "text/javascript"),
}
# Forms are small. A larger body is an attack or a mistake.
_MOST_BODY_BYTES: Final = 16 * 1024
_MOST_FILTER: Final = 200
_OTHER_SITES: Final = frozenset({"cross-site", "same-site"})
"""Sites from which a link or an image may lead here. Nothing is computed for such requests."""


@asynccontextmanager
async def serve(
    source: ClusterSource, *, archive: ArchiveSource | None = None, port: int, secret: str
) -> AsyncGenerator[str]:
    """Serve until the context ends, and yield the address.

    Args:
        source: content of the page.
        archive: content about ended jobs. None: no such page.
        port: port on the loopback interface. 0 selects a free one.
        secret: prefix of every path.

    Raises:
        OSError: the port is taken.
    """
    # One access object decides about all routes, so no route can be forgotten.
    app = application(LoopbackAccess(secret=secret, live=source), archive=archive)
    async with listening(app, host=LOOPBACK, port=port) as taken:
        yield f"http://{LOOPBACK}:{taken}/{secret}/"


def new_secret() -> str:
    """Return a secret of 256 bits."""
    return secrets.token_urlsafe(32)


def application(access: PageAccess, *, archive: ArchiveSource | None = None) -> web.Application:
    """Return the routes with their guards."""
    # The guard is a middleware, so it runs before every handler.
    app = web.Application(middlewares=[_guard(access)], client_max_size=_MOST_BODY_BYTES)

    async def overview(request: web.Request) -> web.Response:
        cluster = await (await access.source(request)).cluster()
        # A long filter would only cost time.
        words = request.query.get("q", "")[:_MOST_FILTER]
        document = pages.overview(
            cluster, words=words, archive=archive is not None, account=access.account
        )
        return answer_of(document)

    async def job(request: web.Request) -> web.Response:
        source = await access.source(request)
        return answer_of(pages.job(await source.job(_job(request)), await source.cluster()))

    async def ask(request: web.Request) -> web.Response:
        action = _action(request)
        if action.ask is None:
            # Some actions have no question, and act without a page of their own.
            raise web.HTTPNotFound
        source = await access.source(request)
        return answer_of(await action.ask(source, _job(request), request.query))

    async def act(request: web.Request) -> web.Response:
        action = _action(request)
        # Authentication comes before the body is read.
        source = await access.source(request)
        done = action.do(source, _job(request), await form_fields(request))
        # The change is finished even if the client disconnects. 303 makes the browser load with
        # GET.
        raise web.HTTPSeeOther(await finish(done))

    async def what_if(request: web.Request) -> web.Response:
        source = await access.source(request)
        # Parse first: a malformed question must not cost a read of the cluster.
        asked = what_if_page.question(request.query)
        cluster = await source.cluster()  # a token that is not known never waits for a question
        ours = request.headers.get("Sec-Fetch-Site") not in _OTHER_SITES
        answer = await source.what_if(asked) if asked is not None and ours else None
        return answer_of(what_if_page.what_if(cluster, asked, answer))

    # Routes have a fixed number of segments, so names cannot reach another route.
    prefix = access.prefix
    app.router.add_get(f"{prefix}/", overview)
    app.router.add_get(f"{prefix}/asset/{{name}}", _asset)
    app.router.add_get(f"{prefix}/what-if", what_if)
    app.router.add_get(f"{prefix}/job/{{namespace}}/{{name}}", job)
    app.router.add_get(f"{prefix}/job/{{namespace}}/{{name}}/{{action}}", ask)
    app.router.add_post(f"{prefix}/job/{{namespace}}/{{name}}/{{action}}", act)
    if archive is not None:
        _add_history(app, archive, prefix=prefix)
    access.add_routes(app.router)
    return app


def _job(request: web.Request) -> NamedJob:
    return NamedJob(namespace=request.match_info["namespace"], name=request.match_info["name"])


def _action(request: web.Request) -> JobAction:
    action = ACTIONS.get(request.match_info["action"])
    if action is None:
        raise web.HTTPNotFound
    return action


def _add_history(app: web.Application, archive: ArchiveSource, *, prefix: str) -> None:
    async def history(_request: web.Request) -> web.Response:
        return answer_of(history_pages.history(await archive.ended(), now=time.time()))

    async def ended(request: web.Request) -> web.Response:
        names = (request.match_info[part] for part in ("namespace", "name", "uid"))
        return answer_of(history_pages.ended_job(await archive.job(*names)))

    app.router.add_get(f"{prefix}/history", history)
    app.router.add_get(f"{prefix}/history/{{namespace}}/{{name}}/{{uid}}", ended)


def _guard(access: PageAccess) -> Callable[..., Awaitable[web.StreamResponse]]:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            host_and_port(request.host)  # before anything reads it
            access.check(request)
            answer = await handler(request)
        except web.HTTPException as error:
            # Error pages need the security headers as well.
            error.headers.update(_HEADERS)
            raise
        except CommandError as error:
            answer = _refused(access, request, error)
        answer.headers.update(_HEADERS)
        return answer

    return guard


def _refused(access: PageAccess, request: web.Request, error: CommandError) -> web.Response:
    shown = access.refused(request, error)
    if shown is not None:
        return shown
    # Links are relative, because the prefix contains the secret.
    up = "../" * (request.path.count("/") - access.prefix.count("/") - 1)
    if isinstance(error, BadInput):
        title = "The request is not valid"
        return answer_of(pages.refused(str(error), title=title, up=up), status=400)
    if isinstance(error, Busy):
        return answer_of(pages.refused(str(error), title="Not now", up=up), status=503)
    # 502: the failure is behind this server.
    title = "The cluster did not answer"
    return answer_of(pages.refused(str(error), title=title, up=up), status=502)


async def _asset(request: web.Request) -> web.Response:
    # Only listed files are served. The name never becomes a path.
    known = _ASSETS.get(request.match_info["name"])
    if known is None:
        raise web.HTTPNotFound
    package, kind = known
    text = files(package).joinpath(request.match_info["name"]).read_text(encoding="utf-8")
    return web.Response(text=text, content_type=kind, charset="utf-8")
