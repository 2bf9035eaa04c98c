"""Who may use the page, and with whose rights it reads the cluster.

On loopback that is whoever has the secret path.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import parse_qsl, urlsplit

from aiohttp import web

from drumline_cli.errors import CommandError
from drumline_console.ui.cluster_source import ClusterSource

LOOPBACK: Final = "127.0.0.1"
_NO_TYPE: Final = "application/octet-stream"
"""aiohttp's word for a request that names no type."""
_MOST_FIELDS: Final = 64
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})


class PageAccess(Protocol):
    """What differs between the page of one person and that of many."""

    @property
    def prefix(self) -> str:
        """How the paths of its routes begin; a pattern of aiohttp."""
        ...

    @property
    def account(self) -> bool:
        """Whether there is a page to log in and out."""
        ...

    def check(self, request: web.Request) -> None:
        """Refuse what did not come from a page of ours.

        Raises:
            HTTPException: what the browser is told.
        """
        ...

    async def source(self, request: web.Request) -> ClusterSource:
        """Authenticate the caller and return the cluster with their rights.

        Raises:
            NotLoggedIn: the request has no token, or one that the API server does not accept.
            CommandError: the caller has to wait, or the API server does not answer.
        """
        ...

    def refused(self, request: web.Request, error: CommandError) -> web.Response | None:
        """What somebody is shown whom the cluster refuses; None: the error alone."""
        ...

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Those of its own."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopbackAccess:
    """The person who started the program, behind a path that only the printed address has."""

    secret: str
    live: ClusterSource

    @property
    def prefix(self) -> str:
        """Compared by `check`, in constant time."""
        return "/{secret}"

    @property
    def account(self) -> bool:
        """There is none."""
        return False

    def check(self, request: web.Request) -> None:
        """The secret; a name of this machine; for buttons our own page."""
        given = request.path.split("/")[1]
        if not secrets.compare_digest(given.encode(), self.secret.encode()):
            raise web.HTTPNotFound
        host = request.host.rpartition(":")[0] or request.host
        if host not in {LOOPBACK, "localhost"}:
            raise web.HTTPMisdirectedRequest
        if request.method not in SAFE_METHODS:
            origin = request.headers.get("Origin")
            site = request.headers.get("Sec-Fetch-Site", "same-origin")
            if site != "same-origin" or origin not in {f"http://{request.host}", None, "null"}:
                raise web.HTTPForbidden

    async def source(self, request: web.Request) -> ClusterSource:  # noqa: ARG002 - one for all
        """His cluster."""
        return self.live

    def refused(self, request: web.Request, error: CommandError) -> web.Response | None:  # noqa: ARG002 - a kubeconfig is mended elsewhere
        """There is nothing to log in to here."""
        return None

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """None."""


async def form_fields(request: web.Request) -> dict[str, str]:
    """Return the fields of one of our forms, which browsers send URL-encoded, in UTF-8.

    Raises:
        HTTPException: the request is of another kind or too large.
    """
    if request.content_type not in {"application/x-www-form-urlencoded", _NO_TYPE}:
        raise web.HTTPUnsupportedMediaType
    text = (await request.read()).decode(errors="replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        raise web.HTTPBadRequest from None


def host_and_port(authority: str) -> tuple[str | None, int | None]:
    """Return the parts of `Host`, or of an origin without its scheme.

    Raises:
        HTTPBadRequest: it is malformed.
    """
    try:
        parts = urlsplit(f"//{authority}")
        port = parts.port
    except ValueError:
        raise web.HTTPBadRequest from None
    return parts.hostname, port


def answer_of(document: str, *, status: int = 200) -> web.Response:
    """The answer with a document."""
    answer = web.Response(text=document, content_type="text/html", charset="utf-8", status=status)
    answer.enable_compression()
    return answer
