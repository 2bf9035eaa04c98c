"""What a store answers, as an OSError of which a person knows what to do.

So the rest of the trainer tells a store that is not there (which may come back) from one that
refuses, as it does with file systems: by `errors.is_storage_fault`.
"""

from __future__ import annotations

import errno
import re
from http import HTTPStatus
from typing import Final, Self

from drumline_trainer.contract import without_secrets

_CODE: Final = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")
_STATUS: Final = re.compile(r"status code: (\d{3})")

_ADVICE: Final = {
    "NoSuchBucket": "make the bucket, or correct its name or AWS_REGION",
    "InvalidAccessKeyId": "correct AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "correct AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the credentials have expired: renew them",
    "RequestTimeTooSkewed": "this machine's clock and the store's differ by minutes: set it right",
}
_NOT_ALLOWED: Final = "let these credentials get, put, delete and list objects there"
_TRANSIENT: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})


class BucketError(OSError):
    """A store refuses, or does not answer."""

    @classmethod
    def about(cls, reason: str, number: int = errno.EINVAL) -> Self:
        """With a reason that `str` gives back, and the kind of error that a file system has."""
        return cls(number, reason)

    def __str__(self) -> str:
        return str(self.strerror)


def bucket_error(error: Exception, *, what: str = "") -> BucketError:
    """The error of the library, told in a line without anything secret."""
    text = str(error)
    code = match[1] if (match := _CODE.search(text)) else ""
    status = int(match[1]) if (match := _STATUS.search(text)) else 0
    number = _number(code, status, missing=isinstance(error, FileNotFoundError))
    if isinstance(error, ValueError):  # the library refuses, and asks no store
        number = errno.EINVAL
    advice = _ADVICE.get(code) or (_NOT_ALLOWED if number == errno.EACCES else "")
    answer = (
        f"the store answers {code or 'an error'} ({status})" if status else without_secrets(text)
    )
    reason = ": ".join(part for part in (what, answer, advice) if part)
    return BucketError.about(reason, number)


def _number(code: str, status: int, *, missing: bool) -> int:
    if code == "RequestTimeTooSkewed":
        return errno.EREMOTEIO  # another node may be right
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return errno.EACCES
    if missing:
        return errno.ENOENT
    refused = 400 <= status < 500 and status not in _TRANSIENT
    return errno.EINVAL if refused else errno.EREMOTEIO
