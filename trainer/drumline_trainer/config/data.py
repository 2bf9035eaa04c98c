"""The section `data`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from drumline_trainer.config.bounds import Bytes, Positions
from drumline_trainer.config.errors import ConfigError, require_positive

S3_SCHEME = "s3://"
_BUCKET_AND_PREFIX = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()=+/-]*)?")


class Packing(StrEnum):
    """What a window of several documents teaches."""

    STREAM = "stream"
    """Each token from all before it in the window, whichever document they are of."""
    DOCUMENTS = "documents"
    """No target crosses into another document: the first token of each is not predicted."""
    SEPARATE = "separate"
    """Nothing does: attention stays within a document too, and its positions count from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Where the samples come from. Their order depends on `seed` of the run alone."""

    source: str = "python-stdlib"
    """`python-stdlib` (this interpreter's own sources), an absolute folder (text, token shards or
    labelled images: what lies in it decides), or `s3://bucket/prefix` (token shards)."""
    pattern: str = "**/*.py"
    """Files of a folder of text that are read, sorted by path."""
    sequence_length: Positions = 128
    """Tokens of a sample of text."""
    tokenizer: str | None = None
    """The tokenizer.json that the token shards of `source` must have been made with. None: text is
    read as bytes, and shards of any tokenizer are taken."""
    packing: Packing = Packing.STREAM
    cache_bytes: Bytes = 256 * 1024**2
    """Of streamed shards, at most so many are kept in the memory of each rank."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive(
            {
                "data.sequence_length": self.sequence_length,
                "data.cache_bytes": self.cache_bytes,
            }
        )
        _check_source(self.source)
        _check_pattern(self.pattern)
        if self.tokenizer is not None and not self.tokenizer.startswith("/"):
            raise ConfigError(
                f"data.tokenizer: must be the absolute path of a tokenizer.json, not"
                f" {self.tokenizer!r}"
            )


def _check_source(source: str) -> None:
    if source.startswith(S3_SCHEME):
        if not _BUCKET_AND_PREFIX.fullmatch(source.removeprefix(S3_SCHEME)):
            # the value is not shown: it may hold a password
            raise ConfigError(
                "data.source: must be s3://bucket/prefix and nothing else; the endpoint, the region"
                " and the credentials come from the AWS environment variables"
            )
    elif source != "python-stdlib" and not source.startswith("/"):
        raise ConfigError(
            "data.source: must be python-stdlib, an absolute folder or s3://bucket/prefix, not"
            f" {source!r}"
        )
    if ".." in source.split("/"):
        raise ConfigError("data.source: must not contain '..'")


def _check_pattern(pattern: str) -> None:
    if not pattern.strip("./") or pattern[0] == "/" or ".." in pattern.split("/"):
        raise ConfigError(
            "data.pattern: must be a pattern of file names within the folder, as **/*.py, not"
            f" {pattern!r}"
        )
