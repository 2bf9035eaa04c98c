"""Compare the rounds of several sides. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from tools.bench.load import Timed
from tools.bench.report import Row

OURS: Final = "Drumline"
API_SERVER: Final = "kube-apiserver"
BEST_PEER_GOALS: Final = {"gang": 0.3, "fours": 0.4, "racks": 0.25, "singles": 0.5, "preempt": 0.35}
"""Most of the best peer's time, by shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A round that did not come to its end, with what was seen."""

    why: str


Round = Timed | Failed
Rounds = Mapping[str, Sequence[Round]]
"""The rounds of one shape by side, in the order of the turns."""


def seconds_of(rounds: Sequence[Round]) -> float | None:
    """Return the median of the rounds that ended, or None if none did."""
    ended = [each.seconds for each in rounds if isinstance(each, Timed)]
    return median(ended) if ended else None


def ratio_text(ours: Sequence[Round], peer: Sequence[Round]) -> str:
    """Return our time as a share of a peer's: of the medians, and the range of the turns.

    Example:
        Ours 2, 3, 4 s and a peer's 4, 4, 5 s are "0.75 x (0.50 to 0.80)".
    """
    own, other = seconds_of(ours), seconds_of(peer)
    if own is None or not other:
        return ""
    turns = [
        mine.seconds / its.seconds
        for mine, its in zip(ours, peer, strict=False)
        if isinstance(mine, Timed) and isinstance(its, Timed) and its.seconds > 0
    ]
    shown = f"{own / other:.2f} x"
    return f"{shown} ({min(turns):.2f} to {max(turns):.2f})" if len(turns) > 1 else shown


def rows(
    name: str, title: str, rounds: Rounds, *, versions: Mapping[str, str], whole: bool
) -> Iterator[Row]:
    """Yield a row for each side, and one for our time beside the best peer's.

    Args:
        name: of the shape.
        title: as it is printed.
        rounds: by side.
        versions: of the sides.
        whole: whether sizes are those for which goals are set.
    """
    yield Row(name=title, value=len(rounds), unit="sides")
    best: tuple[float, str] | None = None
    for side, turns in rounds.items():
        seconds = seconds_of(turns)
        failed = [turn.why for turn in turns if isinstance(turn, Failed)]
        beside = "" if side == OURS else ratio_text(rounds.get(OURS, ()), turns)
        if failed:
            beside += f" {len(failed)} of {len(turns)} rounds failed: {failed[0]}"
        label = f"  {side} {versions[side]}"
        if seconds is None:
            yield Row(name=label, value=float("nan"), unit="s", peer=beside.strip())
            continue
        if side != OURS and not failed:
            best = min(best or (seconds, side), (seconds, side))
        yield Row(name=label, value=seconds, unit="s", peer=beside.strip())
        server = [turn.cpu_seconds[API_SERVER] for turn in turns if isinstance(turn, Timed)]
        yield Row(name="    CPU of the API server", value=median(server), unit="s")
    own = seconds_of(rounds.get(OURS, ()))
    if own is not None and best is not None:
        goal = BEST_PEER_GOALS.get(name) if whole else None
        yield Row(
            name=f"  beside the best peer, {best[1]}",
            value=own / best[0],
            unit="x",
            goal="" if goal is None else f"<= {goal:g}",
            met=None if goal is None else own / best[0] <= goal,
        )
