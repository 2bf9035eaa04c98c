"""Notices (spot, maintenance, preemption) that ask for a save at a step boundary, and answers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from drumline_contract import json_fields as read


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Body of `PUT /v1/notice`, signed over ("notice", body): save at the next step boundary."""

    job_uid: str
    id: str
    """Names the notice; the same id twice is one notice."""
    deadline: float
    """Seconds since the epoch: the answer is of use until then."""
    leave: bool
    """Exit with PREEMPTED once the checkpoint is committed; else continue to train."""
    withdraw: bool = False
    """Withdraw the notice with this id, unless the ranks have acted on it."""

    def encode(self) -> bytes:
        """Return the JSON bytes that are sent and signed."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, body: bytes) -> Notice:
        """Read `encode`'s bytes. Raises ContractError."""
        raw = read.json_object(body, 4096)
        return cls(
            job_uid=read.text(raw, "job_uid"),
            id=read.text(raw, "id", limit=253),
            deadline=read.number(raw, "deadline"),
            leave=read.flag(raw, "leave"),
            withdraw=read.flag(raw, "withdraw"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeAnswer:
    """The answer to the newest notice; it may be read any number of times."""

    id: str
    step: int | None = None
    """The step whose checkpoint is committed and verified on request; None while under way."""
    digest: str = ""
    error: str = ""
    """Why it could not be saved; empty where it could."""


def notice_answer(status: dict[str, Any]) -> NoticeAnswer | None:
    """Decode the answer to a notice. None: the status has none.

    Raises:
        ContractError: the answer is malformed.
    """
    raw = read.optional_nested(status, "notice")
    if raw is None:
        return None
    return NoticeAnswer(
        id=read.text(raw, "id", limit=253),
        step=read.optional_integer(raw, "step"),
        digest=read.text(raw, "digest", limit=128),
        error=read.text(raw, "error"),
    )
