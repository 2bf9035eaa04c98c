"""Ranks with GPUs, simulated: processes run ahead of streams, collectives wait for each other.

What a gang looks like when it hangs, as torch's flight recorder writes it (`FlightRecorder.hpp`,
format 2.10). A device runs its compute kernels in order; a collective starts on its group's stream
when all kernels and waits before its call are done, and completes when it has started on all ranks
of the group. A process calls at most `RUN_AHEAD` operations more than its device has done, as
CUDA's launch queue has an end.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

RUN_AHEAD = 40
SAVE_CALLS = 2
"""Collectives of a save, after those of the step."""


class Trouble(StrEnum):
    """What is injected."""

    PROCESS = "a process stands still"
    KERNEL = "a kernel never ends"
    STOPPED = "a process that does not answer either"
    LINK = "a collective never ends"
    TRANSFER = "a send never arrives"
    DATA = "a process waits for its data"
    CHECKPOINT = "a process waits for its storage"
    ORDER = "a rank calls two collectives in another order"
    SLOW = "a process is slow"


STAND_STILL = (
    Trouble.PROCESS,
    Trouble.STOPPED,
    Trouble.DATA,
    Trouble.CHECKPOINT,
    Trouble.SLOW,
)
"""Of these the process calls no more, for as long as it is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One operation of one rank; a kernel where it has no group."""

    name: str
    group: str = ""
    waits: bool = True
    """Kernels after it wait for it."""
    source: int = -1
    target: int = -1


@dataclass(slots=True)
class SimulatedRank:
    """What one rank calls in a step, and how far it has come."""

    calls: list[Call] = field(default_factory=list[Call])
    called: int = 0
    started: set[int] = field(default_factory=set[int])
    """Indices of calls."""
    done: set[int] = field(default_factory=set[int])


@dataclass(slots=True)
class GpuGang:
    """Ranks on pipeline stages x data-parallel replicas x tensor-parallel ranks."""

    pipeline: int = 1
    data: int = 1
    tensor: int = 1
    experts: bool = False
    """Rows of tokens are exchanged over the replicas, in groups of their own."""
    ranks: list[SimulatedRank] = field(default_factory=list[SimulatedRank])
    groups: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    trouble: Trouble = Trouble.PROCESS
    culprit: int = -1
    at: int = -1
    """Index of the call of the culprit that goes wrong."""

    def inject(self, trouble: Trouble, draw: random.Random) -> bool:
        """Choose whom and where; False if this gang has nothing of the kind."""
        if trouble is Trouble.ORDER:
            return self._swap(draw)
        wanted: list[tuple[int, int]] = []
        for number, rank in enumerate(self.ranks):
            last = max(n for n, call in enumerate(rank.calls) if call.group)
            for n, call in enumerate(rank.calls[: last + 1]):
                transfer = call.source >= 0
                kind = {
                    Trouble.KERNEL: not call.group,
                    Trouble.LINK: bool(call.group) and not transfer,
                    Trouble.TRANSFER: transfer,
                    Trouble.DATA: n == 0,
                    Trouble.CHECKPOINT: n > last - SAVE_CALLS,
                }
                if kind.get(trouble, True):
                    wanted.append((number, n))
        if not wanted:
            return False
        self.trouble = trouble
        self.culprit, self.at = draw.choice(wanted)
        return True

    def _swap(self, draw: random.Random) -> bool:
        """Of one rank two collectives, of different groups, with nothing but kernels in between."""
        wanted: list[tuple[int, int, int]] = []
        for number, rank in enumerate(self.ranks):
            calls = [n for n, call in enumerate(rank.calls) if call.group and call.source < 0]
            wanted += [
                (number, n, after)
                for n, after in itertools.pairwise(calls)
                if rank.calls[n].waits
                and rank.calls[after].waits
                and rank.calls[n].group != rank.calls[after].group
                and not any(call.source >= 0 for call in rank.calls[n:after])
            ]
        if not wanted:
            return False
        self.trouble = Trouble.ORDER
        self.culprit, self.at, after = draw.choice(wanted)
        calls = self.ranks[self.culprit].calls
        calls[self.at], calls[after] = calls[after], calls[self.at]
        return True

    def run(self) -> None:
        """Until nothing moves."""
        while sum(self._advance(number) for number in range(len(self.ranks))):
            pass

    def expected(self) -> tuple[str, set[int]]:
        """The right verdict: cause and ranks."""
        call = self.ranks[self.culprit].calls[self.at]
        match self.trouble:
            case Trouble.PROCESS | Trouble.DATA | Trouble.CHECKPOINT | Trouble.SLOW:
                return "process", {self.culprit}
            case Trouble.ORDER:
                return "order", {self.culprit}
            case Trouble.KERNEL:
                return "device", {self.culprit}
            case Trouble.STOPPED:
                return "silent", {self.culprit}
            case Trouble.LINK:
                return "link", set(self.groups[call.group])
            case Trouble.TRANSFER:
                return "link", {call.source, call.target}

    def dump(self, rank: int, *, timed: bool) -> dict[str, Any]:
        """As `_dump_nccl_trace_json` has it."""
        mine = {name: ranks for name, ranks in self.groups.items() if rank in ranks}
        return {
            "version": "2.10",
            "pg_config": {
                name: {"name": name, "desc": "undefined", "ranks": str(ranks)}
                for name, ranks in mine.items()
            },
            "entries": list(self._entries(rank, timed=timed)),
        }

    def _entries(self, rank: int, *, timed: bool) -> Iterator[dict[str, Any]]:
        state = self.ranks[rank]
        numbers: dict[tuple[str, bool], int] = {}
        for n, call in enumerate(state.calls[: state.called]):
            if not call.group:
                continue
            transfer = call.source >= 0
            number = numbers[call.group, transfer] = numbers.get((call.group, transfer), 0) + 1
            if n in state.done:
                reached = "completed"
            else:
                reached = "started" if timed and n in state.started else "scheduled"
            yield {
                "process_group": [call.group, "undefined"],
                "collective_seq_id": 0 if transfer else number,
                "p2p_seq_id": number if transfer else 0,
                "profiling_name": f"nccl:{call.name}",
                "state": reached,
                "is_p2p": transfer,
            }

    def _advance(self, number: int) -> bool:
        rank = self.ranks[number]
        held = self.trouble in STAND_STILL and number == self.culprit
        limit = len(rank.calls) if not held else self.at
        limit = min(limit, self._first_undone(rank) + RUN_AHEAD)
        moved = limit > rank.called
        rank.called = max(limit, rank.called)
        blocked, busy = False, set[str]()
        for n, call in enumerate(rank.calls[: rank.called]):
            stream = f"{call.group} {call.source} {call.target}"
            if n in rank.done:
                continue
            stuck = number == self.culprit and n == self.at
            if not call.group:
                blocked = blocked or (stuck and self.trouble is Trouble.KERNEL)
                moved |= not blocked
                rank.done |= set() if blocked else {n}
                continue
            if not blocked and stream not in busy and n not in rank.started:
                rank.started.add(n)
                moved = True
            if n in rank.started and self._complete(number, n):
                moved = True
                continue
            busy.add(stream)
            blocked = blocked or call.waits
        return moved

    def _first_undone(self, rank: SimulatedRank) -> int:
        return next((n for n in range(len(rank.calls)) if n not in rank.done), len(rank.calls))

    def _complete(self, number: int, n: int) -> bool:
        """Complete a collective on all its ranks, if it has started on all of them."""
        call = self.ranks[number].calls[n]
        count = _count(self.ranks[number].calls, n)
        members = [call.source, call.target] if call.source >= 0 else self.groups[call.group]
        there = {rank: _index(self.ranks[rank].calls, call, count) for rank in members}
        if self.trouble in (Trouble.LINK, Trouble.TRANSFER) and there.get(self.culprit) == self.at:
            return False
        if any(index not in self.ranks[rank].started for rank, index in there.items()):
            return False
        for rank, index in there.items():
            self.ranks[rank].done.add(index)
        return True


def _same(call: Call, other: Call) -> bool:
    return (call.group, call.source, call.target) == (other.group, other.source, other.target)


def _count(calls: list[Call], n: int) -> int:
    return sum(_same(call, calls[n]) for call in calls[: n + 1])


def _index(calls: list[Call], wanted: Call, count: int) -> int:
    same = [n for n, call in enumerate(calls) if _same(call, wanted)]
    return same[count - 1]


def gpu_gang(draw: random.Random) -> GpuGang:
    """A gang of 2 to 16 ranks in the middle of a step of some layers and micro-batches."""
    sizes = [(1, 2, 1), (1, 4, 1), (1, 1, 4), (1, 2, 2), (2, 2, 1), (2, 2, 2), (4, 2, 1), (2, 2, 4)]
    pipeline, data, tensor = draw.choice(sizes)
    gang = GpuGang(pipeline=pipeline, data=data, tensor=tensor)
    gang.experts = data > 1 and draw.random() < 0.5
    places = [
        (stage, replica, column)
        for stage in range(pipeline)
        for replica in range(data)
        for column in range(tensor)
    ]
    gang.groups["0"] = list(range(len(places)))
    for number, (stage, replica, column) in enumerate(places):
        for name, key in (
            (f"tp {stage} {replica}", tensor > 1),
            (f"dp {stage} {column}", data > 1),
            (f"ep {stage} {column}", gang.experts),
            (f"pp {replica} {column}", pipeline > 1),
        ):
            if key:
                gang.groups.setdefault(name, []).append(number)
    layers, batches = draw.randint(1, 4), draw.randint(1, 3)
    for stage, replica, column in places:
        calls = list(_step(stage, replica, column, gang=gang, layers=layers, micro_batches=batches))
        gang.ranks.append(SimulatedRank(calls=calls))
    return gang


def _step(
    stage: int, replica: int, column: int, *, gang: GpuGang, layers: int, micro_batches: int
) -> Iterator[Call]:
    """Pipelined forward and backward, tensor-parallel sums, gradients reduced on the way."""
    kernel = Call(name="kernel")
    peers = gang.groups.get(f"pp {replica} {column}", [])
    sums = Call(name="all_reduce", group=f"tp {stage} {replica}")
    exchange = Call(name="all_to_all", group=f"ep {stage} {column}")
    gradients = Call(name="_reduce_scatter_base", group=f"dp {stage} {column}", waits=False)

    def transfer(source: int, target: int) -> Call:
        kind = f"send {source}->{target}" if source == stage else f"recv {target}<-{source}"
        return Call(
            name=kind, group=f"pp {replica} {column}", source=peers[source], target=peers[target]
        )

    for forward in (True, False):
        first, last = (0, gang.pipeline - 1) if forward else (gang.pipeline - 1, 0)
        towards = 1 if forward else -1
        for batch in range(micro_batches):
            if stage != first:
                yield transfer(stage - towards, stage)
            for _ in range(layers):
                yield kernel
                if gang.tensor > 1:
                    yield sums
                yield kernel
                if gang.experts:
                    yield exchange
                    yield kernel
                if gang.data > 1 and not forward and batch == micro_batches - 1:
                    yield gradients
            if stage != last:
                yield transfer(stage, stage + towards)
    for name in ("all_reduce", "all_gather", "broadcast"):
        yield Call(name=name, group="0")
