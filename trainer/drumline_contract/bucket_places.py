"""Buckets of object storage: how a place of checkpoints there is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_PART: Final = "[.]{0,2}[A-Za-z0-9!_*()=-][A-Za-z0-9!_.*()=-]*"
KEY_PATTERN: Final = f"{_PART}(/{_PART})*"
"""Of a key's parts none is `.` or `..`, which what is between a client and the store may resolve.
What else may stand in keys would have to be escaped in URLs."""
BUCKET_PATTERN: Final = f"^(s3|gs)://[a-z0-9][a-z0-9._-]{{1,221}}(/{_PART})*$"
"""A bucket and a prefix in it, without a slash at its end."""
BUCKET_SCHEMES: Final = ("s3://", "gs://")
BUCKET_FORMS: Final = "s3://BUCKET/PREFIX or gs://BUCKET/PREFIX"

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
    """The URL. Raises ValueError where it is none of a bucket that is supported."""
    if not re.fullmatch(BUCKET_PATTERN, place):
        raise ValueError(f"{place!r} names no place: write a folder, {BUCKET_FORMS}")
    return place


def without_secrets(text: str) -> str:
    """The first line of what a store's library says, without its debug dump.

    Nor has it what may hold a token or a password: queries, and URLs with a user.
    """
    return _QUERY.sub("", _WITH_USER.sub("//...", text.split("\n", 1)[0]))[:300]


def checkpoint_place(text: str) -> Path | str:
    """A folder, or the URL of a bucket. Raises ValueError for another URL."""
    return checked_bucket(text) if "://" in text else Path(text)
