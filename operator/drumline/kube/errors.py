# ruff: noqa: N818 - the API server's own words, without "Error" at their ends
"""Everything that can go wrong between Drumline and the API server, as one tree.

::

    KubeError
    ├── NotLeader            the fence is down: nothing was sent
    ├── Unreachable          no whole answer: refused, reset, deadline passed      (retryable)
    ├── Malformed            an answer that is not what the API promises
    ├── TooLarge             an answer with more bytes than the request allows
    └── StatusError          an answer outside 2xx; carries the Status' reason and message
        ├── Invalid          400, 422   the object or the request is wrong
        ├── Unauthorized     401        the credentials are not accepted (any more)
        ├── Forbidden        403        RBAC, ResourceQuota, Pod Security: the message says which
        ├── NotFound         404        the object is gone, or its kind is not served
        ├── AlreadyExists    409        a create of a name that is taken
        ├── Conflict         409        a stale resourceVersion, uid, or field owned by another
        ├── Gone             410        a resourceVersion or continue token that was compacted
        ├── TooManyRequests  429        priority and fairness; may name a delay    (retryable)
        └── ServerError      5xx        the server's own fault                     (retryable)

`retryable` speaks of the error alone. A write of which an attempt ended in `Unreachable` or
`ServerError` may have been carried out (`KubeError.maybe_done`), so a repeated create can answer
`AlreadyExists` and a repeated conditional update `Conflict`: callers decide both by reading the
object.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from drumline_contract import plain

# An answer of an admission webhook can be as long as its author likes.
_MAX_MESSAGE_CHARS = 2048


class KubeError(Exception):
    """Any failure of a request to the API server."""

    retryable: ClassVar[bool] = False
    maybe_done: bool = False
    """True if the failed write may have taken effect.

    An attempt of it got no answer, or an answer that leaves it open. The client sets it.
    """
    seconds: float = 0.0
    """Duration of the failed attempt. The client sets it."""


class NotLeader(KubeError):
    """This process may not write: it holds no lease, or can no longer prove that it does."""


class Unreachable(KubeError):
    """No whole answer came: the connection failed, broke, or the deadline passed.

    Attributes:
        sent: Whether the server may have received the request: there was a connection.
    """

    retryable: ClassVar[bool] = True

    def __init__(self, message: str = "", *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class Malformed(KubeError):
    """The answer's body is not what the API promises."""

    # The status was 2xx, so the server has probably stored the object.
    maybe_done = True


class TooLarge(KubeError):
    """The answer has more bytes than the request allows. The rest of it was not read."""


class StatusError(KubeError):
    """An answer outside 2xx.

    Attributes:
        code: The HTTP status code.
        reason: The machine-readable reason of the Status object, empty if there was none.
        message: The server's sentence, bounded; fit for a condition or an event.
        retry_after_seconds: What the server asked to wait, or None.
    """

    def __init__(
        self,
        *,
        code: int,
        reason: str,
        message: str,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after_seconds = retry_after_seconds


class Invalid(StatusError):
    """400 or 422."""


class Unauthorized(StatusError):
    """401."""


class Forbidden(StatusError):
    """403."""


class NotFound(StatusError):
    """404."""


Unreadable = Forbidden | NotFound
"""There may be nothing to read: no right to it, or no such kind."""


class AlreadyExists(StatusError):
    """409 of a create."""


class Conflict(StatusError):
    """409 of anything else."""


class Gone(StatusError):
    """410."""


class TooManyRequests(StatusError):
    """429."""

    retryable: ClassVar[bool] = True


class ServerError(StatusError):
    """5xx."""

    retryable: ClassVar[bool] = True


_BY_CODE: dict[int, type[StatusError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


# Every field has a default: a proxy may answer with JSON that is not a Status.
class _Details(msgspec.Struct, frozen=True, rename="camel"):
    retry_after_seconds: float | None = None


class _Status(msgspec.Struct, frozen=True):
    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


_decode_status = msgspec.json.Decoder(_Status).decode


def from_answer(*, code: int, body: bytes, retry_after: str | None = None) -> StatusError:
    """Return the typed error of an HTTP answer outside 2xx.

    Args:
        code: HTTP status code.
        body: body of the answer: a Status object, or a proxy's text.
        retry_after: the Retry-After header, if any. Only its form in seconds is understood.
    """
    try:
        status = _decode_status(body)
    except msgspec.MsgspecError:
        # A proxy or load balancer answers in HTML or text. Its first characters still name the
        # cause.
        status = _Status(message=body[:_MAX_MESSAGE_CHARS].decode(errors="replace"))
    return from_status(
        code=code,
        reason=status.reason,
        message=status.message,
        retry_after_seconds=_seconds(retry_after),
    )


# Inside a watch the HTTP status was 200, so the code is only in the Status object.
def from_stream(raw: bytes) -> StatusError:
    """Return the typed error of an ERROR event's Status object inside a watch."""
    status = _decode_status(raw)
    return from_status(
        code=status.code,
        reason=status.reason,
        message=status.message,
        retry_after_seconds=status.details.retry_after_seconds if status.details else None,
    )


def from_status(
    *,
    code: int,
    reason: str,
    message: str,
    retry_after_seconds: float | None = None,
) -> StatusError:
    """Return the typed error of a decoded Status.

    Args:
        code: HTTP status code.
        reason: reason of the Status object.
        message: message of the Status object.
        retry_after_seconds: Retry-After header.
    """
    # Unlisted 4xx codes are final: a repeated request would get the same answer.
    kind = _BY_CODE.get(code, ServerError if code >= 500 else StatusError)
    # Both are 409. Only the reason separates a taken name from a lost race.
    if kind is Conflict and reason == "AlreadyExists":
        kind = AlreadyExists
    return kind(
        code=code,
        reason=reason,
        message=plain(message[:_MAX_MESSAGE_CHARS]),
        retry_after_seconds=retry_after_seconds,
    )


def _seconds(header: str | None) -> float | None:
    # The header may also be an HTTP date. The API server always writes seconds.
    return float(header) if header is not None and header.isdecimal() else None
