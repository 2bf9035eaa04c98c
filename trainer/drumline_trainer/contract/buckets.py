"""Buckets of object storage: how a place of checkpoints there is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

BUCKET_PATTERN: Final = r"^(s3|gs)://[a-z0-9][a-z0-9._-]{1,221}(/[A-Za-z0-9!_.*()=-]+)*$"
"""A bucket and a prefix in it, without a slash at its end. What else may stand in keys would have
to be escaped in URLs."""
BUCKET_FORMS: Final = "s3://BUCKET/PREFIX or gs://BUCKET/PREFIX"

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
    if not re.match(BUCKET_PATTERN, place):
        raise ValueError(f"{place!r} is no place for checkpoints: write a folder, {BUCKET_FORMS}")
    return place


def checkpoint_place(text: str) -> Path | str:
    """A folder, or the URL of a bucket. Raises ValueError for another URL."""
    return checked_bucket(text) if "://" in text else Path(text)
