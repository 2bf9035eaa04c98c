"""Who keeps the others waiting, from what ranks wrote down (`profiling.flight_recorder`).

    python -m drumline_trainer.profiling.hang metrics/flight/1.0

A rank waits for those of its group that have begun fewer collectives of that axis. Who is waited
for may wait itself, on another axis: the ones to blame are at the ends of these chains. Stages of a
pipeline send and receive different numbers of times: on `pp` a rank waits for those of its group
that do not wait there. Where no rank waits in a collective that was counted, those are behind that
have entered fewer phases.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumline_trainer.layout import Axis
from drumline_trainer.profiling.flight_recorder import PHASES

PIPELINE = Axis.PIPELINE


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """Where one rank stood when it was asked."""

    rank: int
    world_size: int
    step: int
    phase: str
    waits_in: str = ""
    """The collective, `all_reduce/tp`; empty where it is in none."""
    number: int = 0
    """Of that collective on its axis."""
    seconds: float = 0.0
    """Since it began what it does."""
    begun: Mapping[str, int] = field(default_factory=dict[str, int])
    """Collectives by axis, and phases."""
    peers: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])

    @classmethod
    def of(cls, dump: Mapping[str, Any]) -> RankState:
        """Read a dump. Raises KeyError, TypeError or ValueError for anything else."""
        opened = dump["open"] or [{"name": "nothing", "number": 0, "began": dump["written"]}]
        inner = opened[-1]
        waits = "/" in inner["name"]
        return cls(
            rank=int(dump["rank"]),
            world_size=int(dump["world_size"]),
            step=int(dump["step"]),
            phase=str(opened[0]["name"]),
            waits_in=str(inner["name"]) if waits else "",
            number=int(inner["number"]) if waits else 0,
            seconds=float(dump["written"]) - float(inner["began"]),
            begun=dict(dump["begun"]),
            peers=dict(dump["peers"]),
        )

    @property
    def description(self) -> str:
        """In words."""
        if self.waits_in:
            operation, _, axis = self.waits_in.partition("/")
            return f"in {operation} #{self.number} of axis {axis} (step {self.step}, {self.phase})"
        return f"in {self.phase} of step {self.step}"

    def group(self, axis: str) -> Sequence[int]:
        """Ranks that take part in its collectives of that axis."""
        return self.peers.get(axis, range(self.world_size))


def root_cause_ranks(stands: Iterable[RankState]) -> set[int]:
    """Ranks that all waiting comes down to; empty where nobody is behind."""
    by_rank = {stand.rank: stand for stand in stands}
    waits_for = {stand.rank: _waited_for(stand, by_rank) for stand in by_rank.values()}
    blamed = {rank for ranks in waits_for.values() for rank in ranks}
    ends = {rank for rank in blamed if not waits_for.get(rank)}
    if blamed or not by_rank:
        return ends
    passed = {rank: stand.begun.get(PHASES, 0) for rank, stand in by_rank.items()}
    fewest = min(passed.values())
    behind = {rank for rank, number in passed.items() if number == fewest}
    return behind if len(behind) < len(by_rank) else set()


def summary(stands: Sequence[RankState]) -> list[str]:
    """Lines for people: first who is to blame, then where everybody stands."""
    if not stands:
        return ["no rank left anything behind"]
    blamed = root_cause_ranks(stands)
    together: dict[str, list[RankState]] = defaultdict(list)
    for stand in sorted(stands, key=lambda one: (one.rank not in blamed, one.rank)):
        together[stand.description].append(stand)
    lines = [
        f"{_ranks(one.rank for one in here)} {place} for {max(one.seconds for one in here):.1f} s"
        for place, here in together.items()
    ]
    silent = sorted(set(range(stands[0].world_size)) - {one.rank for one in stands})
    if silent:
        lines.append(f"{_ranks(silent)} left nothing behind")
    verdict = (
        f"{_ranks(sorted(blamed))} {'keeps' if len(blamed) == 1 else 'keep'} the others waiting"
        if blamed
        else "nobody is behind: a connection, or work that takes its time"
    )
    return [verdict, *lines]


def read_dumps(folder: Path) -> list[RankState]:
    """All ranks' dumps of one membership, by rank.

    Raises:
        KeyError, TypeError, ValueError: a file is no dump.
    """
    found = [RankState.of(json.loads(path.read_bytes())) for path in folder.glob("rank-*.json")]
    return sorted(found, key=lambda stand: stand.rank)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the summary of a folder."""
    parser = argparse.ArgumentParser(prog="drumline_trainer.profiling.hang", description=__doc__)
    parser.add_argument("folder", type=Path, help="with a rank-N.json of every rank")
    stands = read_dumps(parser.parse_args(arguments).folder)
    sys.stdout.write("\n".join(summary(stands)) + "\n")
    return 0 if stands else 1


def _waited_for(stand: RankState, by_rank: Mapping[int, RankState]) -> set[int]:
    """Ranks that have not begun the collective this one is in; who left no dump is among them."""
    if not stand.waits_in:
        return set()
    axis = stand.waits_in.partition("/")[2]
    silent = {rank for rank in stand.group(axis) if rank not in by_rank}
    others = [by_rank[rank] for rank in stand.group(axis) if rank in by_rank]
    if axis == PIPELINE:
        return silent | {one.rank for one in others if not one.waits_in.endswith(f"/{axis}")}
    return silent | {one.rank for one in others if one.begun.get(axis, 0) < stand.number}


def _ranks(ranks: Iterable[int]) -> str:
    numbers = [str(rank) for rank in ranks]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


if __name__ == "__main__":
    sys.exit(main())
