"""Decide who may use the page, and with which rights it reads the cluster.

On the loopback interface, everyone with the secret path may use it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import parse_qsl, urlsplit

from aiohttp import web

from drumline.telemetry.listener import body_of
from drumline_cli.errors import CommandError
from drumline_console.ui.cluster_source import ClusterSource

LOOPBACK: Final = "127.0.0.1"
_NO_TYPE: Final = "application/octet-stream"
"""aiohttp's word for a request that names no type."""
_MOST_FIELDS: Final = 64
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})


class PageAccess(Protocol):
    """Differences between the page of one person and the page of many people."""

    @property
    def prefix(self) -> str:
        """Return the prefix of all routes, a pattern of aiohttp."""
        ...

    @property
    def account(self) -> bool:
        """Return whether there is a page to log in and out."""
        ...

    def check(self, request: web.Request) -> None:
        """Reject requests that do not come from our pages.

        Raises:
            HTTPException: the request is rejected.
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
        """Return the page for a caller whom the cluster rejects. None: show the error."""
        ...

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Add the routes of this access."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopbackAccess:
    """Access for the person who started the program, by a secret path in the printed address."""

    secret: str
    live: ClusterSource

    @property
    def prefix(self) -> str:
        """Return the prefix with the secret, which `check` compares in constant time."""
        return "/{secret}"

    @property
    def account(self) -> bool:
        """Return False, because there is no account page."""
        return False

    def check(self, request: web.Request) -> None:
        """Check the secret, the host name and, for buttons, the origin.

        Raises:
            HTTPNotFound: the path lacks the secret.
            HTTPMisdirectedRequest: `Host` is not the page's address.
            HTTPForbidden: another site sent the request.
        """
        given = request.path.partition("/")[2].partition("/")[0]  # `OPTIONS *` has no slash
        # Constant time, so that the response reveals nothing about the secret.
        if not secrets.compare_digest(given.encode(), self.secret.encode()):
            # 404 does not reveal that a page exists.
            raise web.HTTPNotFound
        host = request.host.rpartition(":")[0] or request.host
        # Another host name indicates DNS rebinding.
        if host not in {LOOPBACK, "localhost"}:
            raise web.HTTPMisdirectedRequest
        if request.method not in SAFE_METHODS:
            origin = request.headers.get("Origin")
            # Old browsers do not send the header. The origin then decides.
            site = request.headers.get("Sec-Fetch-Site", "same-origin")
            if site != "same-origin" or origin not in {f"http://{request.host}", None, "null"}:
                raise web.HTTPForbidden

    async def source(self, request: web.Request) -> ClusterSource:  # noqa: ARG002 - one for all
        """Return the cluster that all callers share."""
        return self.live

    def refused(self, request: web.Request, error: CommandError) -> web.Response | None:  # noqa: ARG002 - a kubeconfig is mended elsewhere
        """Return None, because there is no login."""
        return None

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Add no routes."""


async def form_fields(request: web.Request) -> dict[str, str]:
    """Return the fields of one of our forms, which browsers send URL-encoded, in UTF-8.

    Raises:
        HTTPException: the request is of another kind or too large.
    """
    # Only forms: a JSON request of another site would need other checks.
    if request.content_type not in {"application/x-www-form-urlencoded", _NO_TYPE}:
        raise web.HTTPUnsupportedMediaType
    text = (await body_of(request)).decode(errors="replace")
    try:
        # The bound protects against a flood of tiny fields.
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
    """Return the response with a page."""
    answer = web.Response(text=document, content_type="text/html", charset="utf-8", status=status)
    answer.enable_compression()
    return answer
