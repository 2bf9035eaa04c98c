"""From the figures of all members to the ones that are slow or wrong. No torch.

A figure is compared with the median of all members, or of all pairs, where there are three of them.
Members are paired twice, with other partners: who is slow with both is slow itself, and where only
one pair is slow it is the link between the two.

Example: six members, round 1 pairs 0-1, 2-3, 4-5, round 2 pairs 1-2, 3-4, 5-0. Slow are 2-3 and
1-2: member 2 is in both, and 1 and 3 are fine with their other partners.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Final

SLOWER: Final = 0.8
"""Share of the median below which a figure is slow."""
FEWEST: Final = 3
ROUNDS: Final = 2
VERSION: Final = 1

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFigures:
    """Figures of one member, each that of its slowest rank."""

    index: int
    matmul_tflops: float
    memory_gbps: float
    wrong: tuple[str, ...] = ()
    """Checks with a wrong result: `matmul`, `memory`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberVerdict:
    """True if a member passed."""

    index: int
    failed: str
    """Short description of wrong or slow figures. Empty: it passed."""
    matmul_tflops: float
    memory_gbps: float
    pair_gbps: tuple[float, ...]
    """Rates by round in which it had a partner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck:
    """Result of a check."""

    members: tuple[MemberVerdict, ...]
    links: tuple[Pair, ...]
    """Pairs of members that are slow together while each is fine with another."""

    def encode(self) -> str:
        """Return one line of JSON."""
        return json.dumps({"nodeCheck": VERSION, **asdict(self)}, separators=(",", ":"))


def pairs_of(members: int, *, round_number: int) -> list[Pair]:
    """Return the pairs that exchange messages. With an odd number one member waits.

    Args:
        members: their number.
        round_number: 0 or 1. In round 1 every member has another partner, if possible.
    """
    # Round 0 pairs neighbors. Round 1 shifts by one, in a ring if the number is even.
    if round_number == 0:
        return [(i, i + 1) for i in range(0, members - 1, 2)]
    shifted = [(i, i + 1) for i in range(1, members - 1, 2)]
    # Two members would meet again, so there is no second pair.
    return [*shifted, (members - 1, 0)] if members % 2 == 0 and members > ROUNDS else shifted


def judged(members: Sequence[MemberFigures], rates: Mapping[Pair, float]) -> NodeCheck:
    """Judge the members and links.

    Args:
        members: all of them.
        rates: gigabytes per second by pair, of both rounds.
    """
    # Phase 1: slow pairs, relative to the median of all pairs.
    slow = {pair for pair in rates if _is_slow(rates[pair], rates.values())}
    # Phase 2: a member is blamed if all its pairs are slow.
    blamed = {member.index for member in members if _is_blamed(member.index, slow, rates)}
    return NodeCheck(
        members=tuple(
            MemberVerdict(
                index=member.index,
                failed="; ".join(_complaints(member, members, blamed, rates)),
                matmul_tflops=member.matmul_tflops,
                memory_gbps=member.memory_gbps,
                pair_gbps=tuple(rates[pair] for pair in _pairs_with(member.index, rates)),
            )
            for member in members
        ),
        # A slow pair without a blamed member is a slow link.
        links=tuple(sorted(pair for pair in slow if not blamed & set(pair))),
    )


def _complaints(
    member: MemberFigures,
    members: Sequence[MemberFigures],
    blamed: set[int],
    rates: Mapping[Pair, float],
) -> Iterable[str]:
    yield from (f"{what} gives wrong results" for what in member.wrong)
    matmuls = [each.matmul_tflops for each in members]
    if _is_slow(member.matmul_tflops, matmuls):
        yield f"matmul {_share(member.matmul_tflops, matmuls)} of the median"
    memories = [each.memory_gbps for each in members]
    if _is_slow(member.memory_gbps, memories):
        yield f"memory {_share(member.memory_gbps, memories)} of the median"
    if member.index in blamed:
        best = max(rates[pair] for pair in _pairs_with(member.index, rates))
        yield f"network {_share(best, rates.values())} of the median"


def _is_blamed(index: int, slow: set[Pair], rates: Mapping[Pair, float]) -> bool:
    """Return whether all its pairs are slow, and its partners are not to blame for it."""
    pairs = _pairs_with(index, rates)
    # One fast pair clears a member.
    if not pairs or not slow.issuperset(pairs):
        return False
    if len(pairs) >= ROUNDS:
        return True
    # With one pair only, the partner's other pair decides.
    partner = sum(pairs[0]) - index
    return any(pair not in slow for pair in _pairs_with(partner, rates))


def _pairs_with(index: int, rates: Iterable[Pair]) -> list[Pair]:
    return [pair for pair in rates if index in pair]


def _is_slow(figure: float, figures: Iterable[float]) -> bool:
    every = list(figures)
    # A median of fewer than three figures says nothing about an outlier.
    return len(every) >= FEWEST and figure < SLOWER * median(every)


def _share(figure: float, figures: Iterable[float]) -> str:
    return f"{100 * figure / median(figures):.0f} %"
