"""Buckets of object storage and the Hugging Face Hub: how places there are written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_PART: Final = "[.]{0,2}[A-Za-z0-9!_*()=-][A-Za-z0-9!_.*()=-]*"
KEY_PATTERN: Final = f"{_PART}(/{_PART})*"
"""Keys of objects. No part is `.` or `..`, which a proxy before the store may resolve. All other
excluded characters would need escaping in URLs."""
BUCKET_PATTERN: Final = f"^(s3|gs)://[a-z0-9][a-z0-9._-]{{1,221}}(/{_PART})*$"
"""A bucket and a prefix in it, without a slash at its end."""
BUCKET_SCHEMES: Final = ("s3://", "gs://")
BUCKET_FORMS: Final = "s3://BUCKET/PREFIX or gs://BUCKET/PREFIX"
HUB_SCHEME: Final = "hf://"
HUB_READERS: Final = "DRUMLINE_HUB_READERS"
"""Environment variable that names the processes of one start of a run. Those that share a cache
folder read the same commit of a branch, and one of them asks the Hub for it."""
SOURCE_FORMS: Final = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or hf://ORG/NAME@REVISION"

_REPOSITORY: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
HUB_PATTERN: Final = re.compile(
    f"hf://(?P<datasets>datasets/)?(?P<repository>{_REPOSITORY}/{_REPOSITORY})"
    "(@(?P<revision>refs/pr/[0-9]+|refs/convert/[A-Za-z0-9._-]+|[A-Za-z0-9][A-Za-z0-9._%-]*))?"
    r"(?P<path>(/(?!\.\.?(/|$))[^/\x00-\x1f\x7f]+)+)?"
)
"""A repository of the Hugging Face Hub, as its own library writes it: model or data set."""

_QUERY: Final = re.compile(r"\?\S*")
_WITH_USER: Final = re.compile(r"//\S*@\S*")

BUCKET_VARIABLES: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
)
"""Keys of a Secret of which a bucket's credentials are read, and the variables that they become."""


def checked_bucket(place: str) -> str:
    """Return the URL of a bucket unchanged.

    Raises:
        ValueError: it is not the URL of a supported bucket.
    """
    if not re.fullmatch(BUCKET_PATTERN, place):
        raise ValueError(f"{place!r} names no place: write a folder, {BUCKET_FORMS}")
    return place


def without_secrets(text: str) -> str:
    """Return the first line of a storage library's message, without secrets or debug output.

    Queries and user names in URLs are removed, because they may hold a token or a password. The
    result has at most 300 characters.
    """
    return _QUERY.sub("", _WITH_USER.sub("//...", text.split("\n", 1)[0]))[:300]


def checkpoint_place(text: str) -> Path | str:
    """Return a folder as a path, or a bucket's URL as text.

    Raises:
        ValueError: it is a URL of something else.
    """
    return checked_bucket(text) if "://" in text else Path(text)


def checked_source(place: str) -> str:
    """Return the URL of a bucket, or of a model on the Hugging Face Hub, unchanged.

    Raises:
        ValueError: it is neither.
    """
    match = HUB_PATTERN.fullmatch(place)
    return place if match is not None and not match["datasets"] else checked_bucket(place)
