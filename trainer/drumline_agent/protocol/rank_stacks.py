"""A member's answer to `ShowStacks`: where in their program its ranks were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from drumline_agent.protocol.membership import MAX_MESSAGE_BYTES, MAX_RANKS
from drumline_contract import json_fields as read

MAX_PLACE_CHARS: Final = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStack:
    """The place of a rank in its program."""

    rank: int
    operation: str
    """Collective of torch.distributed that it was in, such as `all_reduce`; empty: none."""
    place: str
    """Line of its own code, such as `train.py, line 31`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStacks:
    """Ranks of a pod whose place is known."""

    places: tuple[RankStack, ...]


def parse_rank_stacks(body: bytes) -> RankStacks:
    """Read an answer. Raises ContractError."""
    raw = read.json_object(body, MAX_MESSAGE_BYTES)
    return RankStacks(
        places=tuple(
            RankStack(
                rank=read.integer(each, "rank"),
                operation=read.text(each, "operation", limit=MAX_PLACE_CHARS),
                place=read.text(each, "place", limit=MAX_PLACE_CHARS),
            )
            for each in read.objects(raw, "places", limit=MAX_RANKS)
        )
    )
