"""The sides of a copy: a path of this machine, or `claim:NAME/PATH`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from drumline_cli.errors import BadInput
from drumline_contract import plain

PREFIX: Final = "claim:"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPath:
    """A path in a PersistentVolumeClaim. The empty path is its top folder.

    Attributes:
        claim: name of the claim.
        path: path without a slash at either end.
        is_folder: whether the text names a folder: the top folder, or a path that ends in a slash.
    """

    claim: str
    path: str
    is_folder: bool = False

    def __str__(self) -> str:
        return f"{PREFIX}{self.claim}/{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCopy:
    """A copy between this machine and a claim."""

    claim: ClaimPath
    local: str
    to_claim: bool


def claim_path(text: str) -> ClaimPath | None:
    """Return the claim and the path in it; None if the text is another kind of path.

    Raises:
        BadInput: the claim's name is not valid, or the path leaves the claim.
    """
    if not text.startswith(PREFIX):
        return None
    name, _, path = text.removeprefix(PREFIX).partition("/")
    parts = PurePosixPath(path).parts
    if not _NAME.fullmatch(name) or ".." in parts or path.startswith("/"):
        raise BadInput(f"invalid path {plain(text)}: want claim:NAME/PATH")
    return ClaimPath(claim=name, path="/".join(parts), is_folder=not parts or path.endswith("/"))


def claim_copy(source: str, target: str) -> ClaimCopy | None:
    """Return the copy if one side is a claim; None if neither is.

    Raises:
        BadInput: both sides are in claims.
    """
    from_claim, to_claim = claim_path(source), claim_path(target)
    if from_claim and to_claim:
        raise BadInput("want one side of cp as claim:NAME/PATH and the other as a local path")
    if to_claim:
        return ClaimCopy(claim=to_claim, local=source, to_claim=True)
    return ClaimCopy(claim=from_claim, local=target, to_claim=False) if from_claim else None
