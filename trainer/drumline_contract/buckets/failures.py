"""Errors of an object store as OSErrors with advice.

The trainer distinguishes a lost store (which may come back) from one that rejects a request, as it
does for file systems, with `errors.is_storage_fault`.
"""

from __future__ import annotations

import errno
import re
from http import HTTPStatus
from typing import Final, Self

from drumline_contract import without_secrets

_CODE: Final = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")
_STATUS: Final = re.compile(r"status code: (\d{3})")

NO_CREDENTIALS: Final = "no credentials"
_REGION: Final = "set AWS_REGION to the bucket's own"
_EXPIRED: Final = "the credentials have expired: renew them"
_ADVICE: Final = {
    "NoSuchBucket": "make the bucket, or correct its name or AWS_REGION",
    "InvalidAccessKeyId": "correct AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "correct AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "InvalidToken": "correct AWS_SESSION_TOKEN, or remove it where the keys have none",
    "RequestTimeTooSkewed": "this machine's clock and the store's differ by minutes: set it right",
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
}
_ADVICE_BY_WORDS: Final = {
    "No CA certificates were loaded": (  # whatever the endpoint is
        "install the package ca-certificates in the image, or name a bundle in SSL_CERT_FILE"
    ),
    "incorrectly configured region": _REGION,  # a redirect, of which the library keeps no code
    "//169.254.169.254/": (  # where a node of AWS says what role it has
        f"{NO_CREDENTIALS}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (a job names a"
        " Secret), or give the pods' ServiceAccount a role"
    ),
    "//metadata.google.internal/": (
        f"{NO_CREDENTIALS}: set GOOGLE_SERVICE_ACCOUNT_KEY (a job names a Secret), or give the"
        " pods' ServiceAccount an account of GCP"
    ),
}
_NOT_ALLOWED: Final = "let these credentials get, put, delete and list objects there"
_TRANSIENT: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})


class BucketError(OSError):
    """A store refuses, or does not answer."""

    what: str = ""
    """The failed operation with its object. `strerror` has the cause."""

    @classmethod
    def about(cls, reason: str, number: int = errno.EINVAL, *, what: str = "") -> Self:
        """Make an error of the kind that a file system raises.

        Args:
            reason: message of the store.
            number: errno value.
            what: the object or prefix.
        """
        error = cls(number, reason)
        error.what = what
        return error

    def __str__(self) -> str:
        return f"{self.what}: {self.strerror}" if self.what else str(self.strerror)


class StoreError(RuntimeError):
    """A store is lost or refuses, where a file was to be read or written."""

    def __init__(self, message: str, *, may_come_back: bool) -> None:
        super().__init__(message)
        self.may_come_back = may_come_back
        """True if a retry can succeed without a change of the job: the store is lost or busy."""


def bucket_error(error: Exception, *, what: str = "") -> BucketError:
    """Convert an error of the library to one line without secrets.

    Args:
        error: raised by the library.
        what: the failed operation with its object.
    """
    text = str(error)
    code = match[1] if (match := _CODE.search(text)) else ""
    status = int(match[1]) if (match := _STATUS.search(text)) else 0
    number = _number(code, status, missing=isinstance(error, FileNotFoundError))
    if isinstance(error, ValueError):  # the library refuses, and asks no store
        number = errno.EINVAL
    by_words = next((said for words, said in _ADVICE_BY_WORDS.items() if words in text), "")
    advice = _ADVICE.get(code) or by_words or (_NOT_ALLOWED if number == errno.EACCES else "")
    answer = (
        f"the store answers {code or 'an error'} ({status})" if status else without_secrets(text)
    )
    reason = f"{answer}: {advice}" if advice else answer
    return BucketError.about(reason, number, what=what)


def _number(code: str, status: int, *, missing: bool) -> int:
    if code == "RequestTimeTooSkewed":
        return errno.EREMOTEIO  # another node may be right
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return errno.EACCES
    if missing:
        return errno.ENOENT
    refused = 400 <= status < 500 and status not in _TRANSIENT
    return errno.EINVAL if refused else errno.EREMOTEIO
