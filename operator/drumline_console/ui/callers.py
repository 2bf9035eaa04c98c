"""Authenticate callers of the page in the cluster by their own tokens.

The process has no rights. A token comes with each request, in the Authorization header that an
authenticating proxy sets, or in the cookie that the page's own form sets, and goes to the API
server as it came. It lives as long as its request: nothing keeps or logs it. What was read is kept
for seconds under the token's digest, so nobody sees what another's token was given. A token that
is unknown is reviewed first, with one request (`identities`).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from aiohttp import web

from drumline.kube.credentials import Credentials, Token
from drumline.overview.objects import ClusterObjects
from drumline_cli.errors import CommandError, NotAnswered, NotLoggedIn
from drumline_console.ui import account_page
from drumline_console.ui.access import SAFE_METHODS, answer_of, form_fields, host_and_port
from drumline_console.ui.cluster_source import (
    Caller,
    ClusterSource,
    LiveCluster,
    SharedLimits,
    new_memory,
)
from drumline_console.ui.identities import Identities, Sender
from drumline_console.ui.kept_value import KeptValue
from drumline_console.ui.questions import Questions
from drumline_scheduler.model import Policy

# The prefix makes browsers require Secure, Path=/ and no Domain.
TOKEN_COOKIE: Final = "__Host-drumline-token"  # noqa: S105 - its name
NAMESPACE_COOKIE: Final = "__Host-drumline-namespace"
# One working day. The token itself may expire earlier.
LOGIN_SECONDS: Final = 8 * 3600
_LOGIN: Final = "/login"
# The longest token that fits into a cookie of 4096 bytes.
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{8,3800}")
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_EVERY_PORT: Final = frozenset({"localhost", "127.0.0.1", "::1"})
"""Host names whose cookies a browser sends to every port of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """API server that receives the tokens."""

    url: str
    ca: Path


class TokenAccess:
    """Access for everyone with a token.

    Args:
        api_server: API server that receives the tokens.
        policy: scheduling policy of the operator, for questions.
    """

    def __init__(self, api_server: ApiServer, *, policy: Policy) -> None:
        # Limits are shared by all callers of this process.
        self._api_server = api_server
        self._limits = SharedLimits(Questions(policy))
        self._identities = Identities()
        # held by the requests of a share, and by the timer of what they have read
        self._memories: WeakValueDictionary[str, KeptValue[ClusterObjects]] = WeakValueDictionary()

    @property
    def prefix(self) -> str:
        """Return an empty prefix, because the paths contain no secret."""
        return ""

    @property
    def account(self) -> bool:
        """Return True, because there is a page to log in and out."""
        return True

    def check(self, request: web.Request) -> None:
        """Reject actions that do not come from our own pages, as reported by the browser.

        An authenticating proxy has its own cookies, which a browser may send with another site's
        form. If the browser does not report the site (plain HTTP), the origin must be ours.

        Raises:
            HTTPForbidden: another site sent the change.
        """
        if request.method in SAFE_METHODS:
            return
        # Sec-Fetch-Site comes from the browser, and scripts cannot change it.
        site = request.headers.get("Sec-Fetch-Site")
        origin = request.headers.get("Origin", "null")
        # `null` is the origin of sandboxed pages, so it counts as unknown.
        foreign = origin not in {"null", f"http://{request.host}", f"https://{request.host}"}
        ours = not foreign and (site == "same-origin" or (site is None and origin != "null"))
        if not ours:
            raise web.HTTPForbidden

    async def source(self, request: web.Request) -> ClusterSource:
        """Authenticate this request's token and return the cluster with its rights.

        Raises:
            NotLoggedIn: the request has no valid token.
        """
        # No token: answer with the login page, and send nothing to the API server.
        token = _token(request)
        if token is None:
            raise NotLoggedIn("You are not logged in.")
        # The cookie is under the user's control, so its text is checked.
        namespace = request.cookies.get(NAMESPACE_COOKIE, "")
        if _NAMESPACE.fullmatch(namespace) is None:
            namespace = "default"
        credentials = Credentials(
            server=self._api_server.url,
            # The token came with this request. There is nothing to renew it from.
            token=Token(lambda: token, renewable=False),
            ca_path=self._api_server.ca,
            namespace=namespace,
        )
        # Only the digest is kept in memory.
        digest = _digest(token)
        share = await self._identities.share(credentials, digest=digest, sender=_sender(request))
        return LiveCluster(
            Caller(credentials=credentials, key=digest, share=share),
            limits=self._limits,
            memory=self._memory(share),
        )

    def refused(self, request: web.Request, error: CommandError) -> web.Response | None:
        """Return the login page for unknown callers, or the choice of a namespace."""
        up = "../" * (request.path.count("/") - 1)
        # An unknown token is remembered as refused, to spare the API server.
        if isinstance(error, NotLoggedIn):
            token = _token(request)
            if token is not None and request.path != _LOGIN:
                self._identities.refuse(_digest(token))
            document = account_page.account(str(error), up=up, reachable=_reachable(request))
            answer = answer_of(document, status=401)
            # A refused token would be sent with every request, so the cookie is deleted.
            if TOKEN_COOKIE in request.cookies:
                _forget(answer, TOKEN_COOKIE)
            return answer
        # Without rights on all namespaces, the user chooses one.
        chosen = NAMESPACE_COOKIE in request.cookies
        if request.path == "/" and isinstance(error, NotAnswered) and not chosen:
            return answer_of(account_page.choose_namespace(str(error)), status=403)
        return None

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Log in, log out, the own namespace."""
        router.add_get(_LOGIN, _show)
        router.add_post(_LOGIN, _login)
        router.add_post("/logout", _logout)
        router.add_post("/namespace", _choose)

    def _memory(self, key: str) -> KeptValue[ClusterObjects]:
        # Memory is bounded per share. Within it, values are kept by the digest of the token.
        memory = self._memories.get(key)
        if memory is None:
            memory = self._memories[key] = new_memory()
        return memory


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _sender(request: web.Request) -> Sender:
    """Return the connection's address, and the address that the last proxy appended."""
    # The last entry was added by the nearest proxy. Earlier entries can be invented.
    forwarded = ",".join(request.headers.getall("X-Forwarded-For", [])).rpartition(",")[2]
    return Sender(address=request.remote or "", forwarded=forwarded.strip()[:64])


def _token(request: web.Request) -> str | None:
    # The header wins: an authenticating proxy knows the current user.
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    token = given.strip() if scheme.lower() == "bearer" else request.cookies.get(TOKEN_COOKIE, "")
    return token if _TOKEN.fullmatch(token) else None


def _reachable(request: web.Request) -> str | None:
    """Return the address to open instead, if the host's cookies reach programs on other ports."""
    host, port = host_and_port(request.host)
    if host not in _EVERY_PORT:
        return None
    return f"http://drumline.localhost{'' if port is None else f':{port}'}/"


async def _show(request: web.Request) -> web.Response:
    known = _token(request) is not None
    sentence = "A token is in use." if known else "You are not logged in."
    reachable = _reachable(request)
    return answer_of(account_page.account(sentence, up="", reachable=reachable, logged_in=known))


async def _login(request: web.Request) -> web.Response:
    fields = await form_fields(request)
    token = fields.get("token", "").strip()
    # On localhost the cookie would reach programs on other ports.
    if _reachable(request) is not None or _TOKEN.fullmatch(token) is None:
        raise NotLoggedIn("This token cannot be stored in a cookie.")
    answer = web.HTTPSeeOther("./")
    _keep(answer, TOKEN_COOKIE, token)
    _keep_namespace(answer, fields.get("namespace", ""))
    raise answer


async def _logout(_request: web.Request) -> web.Response:
    answer = web.HTTPSeeOther("login")
    _forget(answer, TOKEN_COOKIE)
    _forget(answer, NAMESPACE_COOKIE)
    raise answer


async def _choose(request: web.Request) -> web.Response:
    answer = web.HTTPSeeOther("./")
    _keep_namespace(answer, (await form_fields(request)).get("namespace", ""))
    raise answer


def _keep_namespace(answer: web.StreamResponse, namespace: str) -> None:
    if _NAMESPACE.fullmatch(namespace.strip()):
        # An empty field removes the choice.
        _keep(answer, NAMESPACE_COOKIE, namespace.strip())
    else:
        _forget(answer, NAMESPACE_COOKIE)


def _keep(answer: web.StreamResponse, name: str, value: str) -> None:
    answer.set_cookie(
        name,
        value,
        max_age=LOGIN_SECONDS,
        path="/",
        # Secure, HttpOnly and Strict: no script and no other site can use the cookie.
        secure=True,
        httponly=True,
        samesite="Strict",
    )


def _forget(answer: web.StreamResponse, name: str) -> None:
    answer.del_cookie(name, path="/", secure=True, httponly=True, samesite="Strict")
