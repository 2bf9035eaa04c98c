"""The root cause of a hang, from the ranks' flight records (`profiling.flight_recorder`).

    python -m drumline_trainer.profiling.hang metrics/flight/1.0

A rank waits for the ranks of its group that have begun fewer collectives of that axis. Those may
wait themselves, on another axis: the root cause is at the ends of these chains. Stages of a
pipeline send and receive different numbers of times, so on `pp` a rank waits for the ranks of its
group that do not wait there. Where no rank waits in a counted collective, the root cause are the
ranks that have entered the fewest phases.

Example, tp groups (0, 1) and (2, 3), fsdp groups (0, 2) and (1, 3). Rank 3 hangs in its forward
pass. Rank 2 waits in all_reduce #7 of tp, of which rank 3 has begun 6: it waits for rank 3. Rank 0
waits in all_gather #4 of fsdp for rank 2, and rank 1 for rank 3. All chains end at rank 3.
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

from drumline_contract.layout import Axis
from drumline_trainer.profiling.flight_recorder import PHASES

PIPELINE = Axis.PIPELINE


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """The state of one rank when it wrote its record."""

    rank: int
    world_size: int
    step: int
    phase: str
    waits_in: str = ""
    """The collective, as `all_reduce/tp`; empty outside a collective."""
    number: int = 0
    """Number of that collective on its axis."""
    seconds: float = 0.0
    """Since the collective or phase began."""
    begun: Mapping[str, int] = field(default_factory=dict[str, int])
    """Collectives by axis, and phases."""
    peers: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])

    @classmethod
    def of(cls, dump: Mapping[str, Any]) -> RankState:
        """Parse a flight record. Raises KeyError, TypeError or ValueError for anything else."""
        # A rank between phases has no open entry. It waits in nothing, since it wrote the record.
        opened: list[dict[str, Any]] = dump["open"] or [
            {"name": "nothing", "number": 0, "began": dump["written"]}
        ]
        # The innermost entry is the one that blocks. A slash marks a collective of an axis.
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
        """Position of the rank, as text."""
        if self.waits_in:
            operation, _, axis = self.waits_in.partition("/")
            return f"in {operation} #{self.number} of axis {axis} (step {self.step}, {self.phase})"
        return f"in {self.phase} of step {self.step}"

    def group(self, axis: str) -> Sequence[int]:
        """Return the ranks that take part in its collectives of that axis."""
        return self.peers.get(axis, range(self.world_size))


def root_cause_ranks(states: Iterable[RankState]) -> set[int]:
    """Return the ranks that all waiting ranks finally wait for. Empty: no rank is behind."""
    by_rank = {state.rank: state for state in states}
    # Phase 1: the edges of the graph "rank waits for rank".
    waits_for = {state.rank: _waited_for(state, by_rank) for state in by_rank.values()}
    awaited = {rank for ranks in waits_for.values() for rank in ranks}
    # Phase 2: its ends are awaited but wait for nobody themselves.
    ends = {rank for rank in awaited if not waits_for.get(rank)}
    if awaited or not by_rank:
        return ends
    # Phase 3: no edge at all. The ranks that entered the fewest phases are behind.
    entered = {rank: state.begun.get(PHASES, 0) for rank, state in by_rank.items()}
    fewest = min(entered.values())
    behind = {rank for rank, number in entered.items() if number == fewest}
    # All ranks in the same phase blame nobody.
    return behind if len(behind) < len(by_rank) else set()


def summary(states: Sequence[RankState]) -> list[str]:
    """Return lines of text: first the root cause, then the state of every rank."""
    if not states:
        return ["no rank left anything behind"]
    causes = root_cause_ranks(states)
    # Equal states share a line, so that a thousand ranks stay readable.
    together: dict[str, list[RankState]] = defaultdict(list)
    for state in sorted(states, key=lambda state: (state.rank not in causes, state.rank)):
        together[state.description].append(state)
    lines: list[str] = []
    for description, ranks in together.items():
        seconds = max(state.seconds for state in ranks)
        lines.append(f"{_ranks(state.rank for state in ranks)} {description} for {seconds:.1f} s")
    # A rank without a record crashed or lost its node.
    silent = sorted(set(range(states[0].world_size)) - {state.rank for state in states})
    if silent:
        lines.append(f"{_ranks(silent)} left nothing behind")
    cause = (
        f"{_ranks(sorted(causes))} {'keeps' if len(causes) == 1 else 'keep'} the others waiting"
        if causes
        else "no rank is behind: a connection, or work that takes its time"
    )
    return [cause, *lines]


def read_dumps(folder: Path) -> list[RankState]:
    """Return the states of all ranks of one membership, by rank.

    Raises:
        KeyError, TypeError, ValueError: a file is not a flight record.
    """
    states = [RankState.of(json.loads(path.read_bytes())) for path in folder.glob("rank-*.json")]
    return sorted(states, key=lambda state: state.rank)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the summary of a folder."""
    parser = argparse.ArgumentParser(
        prog="drumline_trainer.profiling.hang",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="with a rank-N.json of every rank")
    states = read_dumps(parser.parse_args(arguments).folder)
    sys.stdout.write("\n".join(summary(states)) + "\n")
    return 0 if states else 1


def _waited_for(state: RankState, by_rank: Mapping[int, RankState]) -> set[int]:
    """Return the ranks that have not begun the collective of this rank, or left no record."""
    if not state.waits_in:
        return set()
    axis = state.waits_in.partition("/")[2]
    # A rank without a record counts as awaited, because it cannot have begun.
    silent = {rank for rank in state.group(axis) if rank not in by_rank}
    peers = [by_rank[rank] for rank in state.group(axis) if rank in by_rank]
    # Sends and receives differ by stage, so their counts cannot be compared.
    if axis == PIPELINE:
        return silent | {peer.rank for peer in peers if not peer.waits_in.endswith(f"/{axis}")}
    return silent | {peer.rank for peer in peers if peer.begun.get(axis, 0) < state.number}


def _ranks(ranks: Iterable[int]) -> str:
    numbers = [str(rank) for rank in ranks]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


if __name__ == "__main__":
    sys.exit(main())
