"""Authentication of callers: one cheap request for a token that this process does not know.

Reviews have turns of their own, by the address that asks, so that callers without a valid token
delay no caller who is known. A token is remembered by its digest, for seconds.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

from drumline.kube import errors, reads
from drumline.kube.credentials import Credentials
from drumline_cli.cluster_access import cluster_client, not_answered
from drumline_cli.errors import NotLoggedIn
from drumline_console.ui.fair_turns import FairTurns

# An identity is asked for again after a minute, because tokens can be revoked.
KNOWN_SECONDS: Final = 60.0
# Short, because a user may correct the token.
REFUSED_SECONDS: Final = 10.0
MOST_REMEMBERED: Final = 4096
_SERVICE_ACCOUNT: Final = "system:serviceaccount:"
_REFUSED: Final = "The API server does not accept this token; log in again."

T = TypeVar("T")
Review = Callable[[Credentials], Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """The machine that a request comes from.

    Attributes:
        address: address of the connection.
        forwarded: the address that the last proxy names. A sender may invent it, so it divides
            the share of `address`.
    """

    address: str
    forwarded: str = ""


class Identities:
    """The users behind tokens.

    Args:
        review: returns the user's name, empty if the API server does not name one.
        clock: monotonic, in seconds.
    """

    def __init__(
        self, *, review: Review | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._review = review or _name
        self._known = _Remembered[str](seconds=KNOWN_SECONDS, clock=clock)
        self._refused = _Remembered[bool](seconds=REFUSED_SECONDS, clock=clock)
        # Reviews of unknown tokens have turns of their own.
        self._turns = FairTurns(at_once=8, at_once_each=4, waiting=64, waiting_each=16)
        self._of_address: WeakValueDictionary[str, FairTurns] = WeakValueDictionary()

    async def share(self, credentials: Credentials, *, digest: bytes, sender: Sender) -> str:
        """Return the name under which the caller's work is bounded.

        It is the user, or the namespace of a service account: users with the right to create
        service accounts have any number of them.

        Args:
            credentials: credentials with the caller's token.
            digest: digest of the token.
            sender: sender whose turn the request takes.

        Raises:
            NotLoggedIn: the API server does not accept the token.
            Busy: too many unknown tokens wait.
            NotAnswered: the API server does not answer.
        """
        # A known token costs no request.
        known = self._remembered(digest)
        if known is not None:
            return known
        # Turns of an address are kept only while somebody waits for one.
        within = self._of_address.get(sender.address)
        if within is None:
            within = FairTurns(at_once=4, at_once_each=2, waiting=16, waiting_each=8)
            self._of_address[sender.address] = within
        # First a turn among the senders behind this connection, then one among all connections.
        async with within.turn(sender.forwarded), self._turns.turn(sender.address):
            # Several windows send the same new token at once.
            known = self._remembered(digest)  # another window has asked
            return await self._asked(credentials, digest) if known is None else known

    def refuse(self, digest: bytes) -> None:
        """Remember that the API server does not accept the token any more."""
        # A refused token must not remain known.
        self._known.forget(digest)
        self._refused.keep(digest, True)

    def _remembered(self, digest: bytes) -> str | None:
        if self._refused.get(digest):
            raise NotLoggedIn(_REFUSED)
        return self._known.get(digest)

    async def _asked(self, credentials: Credentials, digest: bytes) -> str:
        try:
            name = await self._review(credentials)
        except errors.Unauthorized:
            self.refuse(digest)
            raise NotLoggedIn(_REFUSED) from None
        except (errors.Forbidden, errors.NotFound):
            name = ""  # a cluster may take the right from its users
        except errors.KubeError as error:
            raise not_answered(error, what="your token", verb="review") from None
        # Without a name, each token has a share of its own.
        share = _share(name) or digest.hex()
        self._known.keep(digest, share)
        return share


async def _name(credentials: Credentials) -> str:
    async with cluster_client(credentials) as client:
        return (await reads.self_review(client)).username


def _share(name: str) -> str:
    """`system:serviceaccount:team-a` of `system:serviceaccount:team-a:trainer`."""
    if name.startswith(_SERVICE_ACCOUNT):
        # The name of the account is dropped, so accounts of a namespace share their turns.
        return name.rpartition(":")[0]
    return name


class _Remembered(Generic[T]):
    """Values by digest for a fixed time; the oldest give way to new ones."""

    def __init__(self, *, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._values: dict[bytes, tuple[float, T]] = {}

    def get(self, digest: bytes) -> T | None:
        until, value = self._values.get(digest, (0.0, None))
        return value if self._clock() < until else None

    def keep(self, digest: bytes, value: T) -> None:
        """Keep a value; one that is kept already is not kept longer."""
        if self.get(digest) is not None:
            return
        self._values.pop(digest, None)
        self._values[digest] = (self._clock() + self._seconds, value)
        # Dictionaries keep the order of insertion, so the first entry is the oldest.
        while len(self._values) > MOST_REMEMBERED:
            del self._values[next(iter(self._values))]

    def forget(self, digest: bytes) -> None:
        self._values.pop(digest, None)
