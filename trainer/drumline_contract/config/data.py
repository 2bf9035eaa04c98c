"""The section `data`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from drumline_contract import HUB_PATTERN, HUB_SCHEME
from drumline_contract.config.bounds import Bytes, Positions
from drumline_contract.config.errors import ConfigError, require_positive
from drumline_contract.config.mixture import parsed_mixture

S3_SCHEME = "s3://"
_BUCKET_AND_PREFIX = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()=+/-]*)?")
_TEMPLATE = re.compile(r"/.*|[A-Za-z0-9_-]+", re.DOTALL)
"""A path, or a name without a dot or a slash."""


class Packing(StrEnum):
    """Treatment of several documents in one window."""

    STREAM = "stream"
    """Each token from all before it in the window, whichever document they are of."""
    DOCUMENTS = "documents"
    """No target crosses into another document: the first token of each is not predicted."""
    SEPARATE = "separate"
    """Attention also stays within a document, and positions restart at 0 in each document."""
    WHOLE = "whole"
    """Like separate, and no document continues in another window. A window holds as many whole
    documents as fit, then padding."""
    PADDED = "padded"
    """Like whole, with one document per window."""


class Augmentation(StrEnum):
    """Augmentation of encoded images in training. Evaluation always uses the middle of an image."""

    NONE = "none"
    """The largest square in the middle, in every epoch."""
    CROP_AND_MIRROR = "crop_and_mirror"
    """In each epoch another part, of random size and shape, half of them mirrored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Source and form of the samples. Their order depends only on the run's `seed`."""

    source: str = "python-stdlib"
    """`python-stdlib` (this interpreter's own sources), an absolute folder (text, token shards,
    records as lines of JSON, or labelled images: what lies in it decides), a file of records, a
    tar of images or of records, `s3://bucket/prefix` (token shards), or a data set of the Hugging
    Face Hub, `hf://datasets/ORG/NAME@REVISION/PATH`."""
    pattern: str = "**/*.py"
    """Files of a folder of text or of records that are read, sorted by path."""
    mixture: str | None = None
    """Folders below `source` that are mixed, each with its weight, as chats=0.7,math=0.3, or with
    its epochs for one of the whole, as chats=2x,math=0.5x. None: all of `source`."""
    field: str = "text"
    """Name of the field with the text, for records that are plain texts and not conversations."""
    sequence_length: Positions = 128
    """Tokens of a sample of text."""
    tokenizer: str | None = None
    """The tokenizer.json that the token shards of `source` must have been made with, and that
    records are tokenized with. None: the one in the folder `model_from`; where there is none, text
    is read as bytes, and shards of any tokenizer are taken."""
    chat_template: str | None = None
    """Absolute path of the template that conversations are written with, or the name of one of the
    tokenizer's templates, such as `rag`. None: the tokenizer's own, as transformers chooses it."""
    augmentation: Augmentation = Augmentation.NONE
    """Augmentation of images from folders or tars."""
    packing: Packing | None = None
    """None: `whole` for conversations and completions, `stream` for all else."""
    cache_bytes: Bytes = 256 * 1024**2
    """With streamed shards: maximum number of bytes that each rank caches in memory."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive(
            {
                "data.sequence_length": self.sequence_length,
                "data.cache_bytes": self.cache_bytes,
            }
        )
        check_source(self.source, field="data.source")
        check_pattern(self.pattern, field="data.pattern")
        if self.mixture is not None:
            parsed_mixture(self.mixture)
            if self.source == "python-stdlib":
                raise ConfigError("data.mixture: its folders are below data.source; set that too")
        if not self.field:
            raise ConfigError("data.field: must not be empty")
        if self.tokenizer is not None and not self.tokenizer.startswith("/"):
            raise ConfigError(
                f"data.tokenizer: must be the absolute path of a tokenizer.json, not"
                f" {self.tokenizer!r}"
            )
        if self.chat_template is not None and not _TEMPLATE.fullmatch(self.chat_template):
            raise ConfigError(
                f"data.chat_template: must be the absolute path of a file, or the name of one of"
                f" the tokenizer's templates, not {self.chat_template!r}"
            )


def check_source(source: str, *, field: str) -> None:
    """Raise ConfigError for what can be no source."""
    if source.startswith(S3_SCHEME):
        if not _BUCKET_AND_PREFIX.fullmatch(source.removeprefix(S3_SCHEME)):
            # the value is not shown: it may hold a password
            raise ConfigError(
                f"{field}: must be s3://bucket/prefix and nothing else; the endpoint, the region"
                " and the credentials come from the AWS environment variables"
            )
    elif source.startswith(HUB_SCHEME):
        match = HUB_PATTERN.fullmatch(source)
        if match is None or not match["datasets"]:
            raise ConfigError(
                f"{field}: must be hf://datasets/ORG/NAME, with @REVISION and /PATH if needed, and"
                " nothing else; the token comes from HF_TOKEN"
            )
    elif source != "python-stdlib" and not source.startswith("/"):
        raise ConfigError(
            f"{field}: must be python-stdlib, an absolute folder, s3://bucket/prefix or"
            f" hf://datasets/ORG/NAME, not {source!r}"
        )
    if ".." in source.split("/"):
        raise ConfigError(f"{field}: must not contain '..'")


def check_pattern(pattern: str, *, field: str) -> None:
    """Raise ConfigError for what can match no file, or files outside the folder."""
    if not pattern.strip("./") or pattern[0] == "/" or ".." in pattern.split("/"):
        raise ConfigError(
            f"{field}: must be a pattern of file names within the folder, as **/*.py, not"
            f" {pattern!r}"
        )
