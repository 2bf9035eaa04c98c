"""Access to the page in the cluster: each caller's own token, which the API server judges.

The process has no rights. A token comes with each request, in the Authorization header that an
authenticating proxy sets, or in the cookie that the page's own form sets, and goes to the API
server as it came. It lives as long as its request: nothing keeps or logs it. What was read is kept
for seconds under the token's digest, so nobody sees what another's token was given.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from aiohttp import web

from drumline.kube.credentials import Credentials, Token
from drumline.overview.objects import ClusterObjects
from drumline_cli.errors import CommandError, NotAnswered, NotLoggedIn
from drumline_console.ui import account_page
from drumline_console.ui.access import SAFE_METHODS, answer_of
from drumline_console.ui.cluster_source import (
    Caller,
    ClusterSource,
    LiveCluster,
    SharedLimits,
    new_memory,
)
from drumline_console.ui.kept_value import KeptValue
from drumline_console.ui.questions import Questions
from drumline_scheduler.model import Policy

TOKEN_COOKIE: Final = "__Host-drumline-token"  # noqa: S105 - its name
NAMESPACE_COOKIE: Final = "__Host-drumline-namespace"
LOGIN_SECONDS: Final = 8 * 3600
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{8,3800}")
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_EVERY_PORT: Final = frozenset({"localhost", "127.0.0.1", "::1"})
"""A browser sends a cookie of these to whatever listens on any port of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """Where tokens are sent."""

    url: str
    ca: Path


class TokenAccess:
    """Everybody who has a token.

    Args:
        api_server: where they are sent.
        policy: of the operator, for questions.
    """

    def __init__(self, api_server: ApiServer, *, policy: Policy) -> None:
        self._api_server = api_server
        self._limits = SharedLimits(Questions(policy))
        # held by the requests of a caller, and by the timer of what they have read: a token that
        # the API server refuses leaves nothing behind and takes nobody's place
        self._memories: WeakValueDictionary[bytes, KeptValue[ClusterObjects]] = (
            WeakValueDictionary()
        )

    @property
    def prefix(self) -> str:
        """There is no secret in its paths."""
        return ""

    @property
    def account(self) -> bool:
        """There is a page to log in and out."""
        return True

    def check(self, request: web.Request) -> None:
        """Buttons are pressed on our own pages alone, as the browser says.

        An authenticating proxy has cookies of its own, which may go with another site's form. Where
        a browser says nothing of the site (plain HTTP), the origin has to be ours.
        """
        if request.method in SAFE_METHODS:
            return
        site = request.headers.get("Sec-Fetch-Site")
        origin = request.headers.get("Origin", "null")
        foreign = origin != "null" and urlsplit(origin).netloc != request.host
        ours = not foreign and (site == "same-origin" or (site is None and origin != "null"))
        if not ours:
            raise web.HTTPForbidden

    def source(self, request: web.Request) -> ClusterSource:
        """The cluster with the rights of this request's token."""
        token = _token(request)
        if token is None:
            raise NotLoggedIn("Nobody is logged in.")
        namespace = request.cookies.get(NAMESPACE_COOKIE, "")
        if _NAMESPACE.fullmatch(namespace) is None:
            namespace = "default"
        credentials = Credentials(
            server=self._api_server.url,
            token=Token(lambda: token),
            ca_path=self._api_server.ca,
            namespace=namespace,
        )
        return LiveCluster(
            Caller(credentials=credentials, key=_digest(token)),
            limits=self._limits,
            memory=self._memory(_digest(f"{namespace} {token}")),
        )

    def refused(self, request: web.Request, error: CommandError) -> web.Response | None:
        """Who is unknown may log in; who may not list all jobs names his namespace."""
        up = "../" * (request.path.count("/") - 1)
        if isinstance(error, NotLoggedIn):
            document = account_page.account(str(error), up=up, reachable=_reachable(request))
            answer = answer_of(document, status=401)
            if TOKEN_COOKIE in request.cookies:
                _forget(answer, TOKEN_COOKIE)
            return answer
        chosen = NAMESPACE_COOKIE in request.cookies
        if request.path == "/" and isinstance(error, NotAnswered) and not chosen:
            return answer_of(account_page.choose_namespace(str(error)), status=403)
        return None

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Log in, log out, the own namespace."""
        router.add_get("/login", _show)
        router.add_post("/login", _login)
        router.add_post("/logout", _logout)
        router.add_post("/namespace", _choose)

    def _memory(self, key: bytes) -> KeptValue[ClusterObjects]:
        memory = self._memories.get(key)
        if memory is None:
            memory = self._memories[key] = new_memory()
        return memory


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _token(request: web.Request) -> str | None:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    token = given.strip() if scheme.lower() == "bearer" else request.cookies.get(TOKEN_COOKIE, "")
    return token if _TOKEN.fullmatch(token) else None


def _reachable(request: web.Request) -> str | None:
    """The address to open instead, where a cookie would be sent to other programs' ports."""
    address = urlsplit(f"//{request.host}")
    if address.hostname not in _EVERY_PORT:
        return None
    port = "" if address.port is None else f":{address.port}"
    return f"http://drumline.localhost{port}/"


async def _show(request: web.Request) -> web.Response:
    known = _token(request) is not None
    sentence = "A token is in use." if known else "Nobody is logged in."
    reachable = _reachable(request)
    return answer_of(account_page.account(sentence, up="", reachable=reachable, logged_in=known))


async def _login(request: web.Request) -> web.Response:
    fields = await request.post()
    token = str(fields.get("token", "")).strip()
    if _reachable(request) is not None or _TOKEN.fullmatch(token) is None:
        raise NotLoggedIn("That is no token which can be kept in a cookie here.")
    answer = web.HTTPSeeOther("./")
    _keep(answer, TOKEN_COOKIE, token)
    _keep_namespace(answer, str(fields.get("namespace", "")))
    raise answer


async def _logout(_request: web.Request) -> web.Response:
    answer = web.HTTPSeeOther("login")
    _forget(answer, TOKEN_COOKIE)
    _forget(answer, NAMESPACE_COOKIE)
    raise answer


async def _choose(request: web.Request) -> web.Response:
    answer = web.HTTPSeeOther("./")
    _keep_namespace(answer, str((await request.post()).get("namespace", "")))
    raise answer


def _keep_namespace(answer: web.StreamResponse, namespace: str) -> None:
    if _NAMESPACE.fullmatch(namespace.strip()):
        _keep(answer, NAMESPACE_COOKIE, namespace.strip())
    else:
        _forget(answer, NAMESPACE_COOKIE)


def _keep(answer: web.StreamResponse, name: str, value: str) -> None:
    answer.set_cookie(
        name,
        value,
        max_age=LOGIN_SECONDS,
        path="/",
        secure=True,
        httponly=True,
        samesite="Strict",
    )


def _forget(answer: web.StreamResponse, name: str) -> None:
    answer.del_cookie(name, path="/", secure=True, httponly=True, samesite="Strict")
