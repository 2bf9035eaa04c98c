"""What the ranks of a cell wrote down themselves, and what follows from it. Standard library only.

A diary is a file per rank process, one JSON object a line, appended in one write each: a process
that is killed leaves whole lines.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

DIARIES = "diaries"
PIDS = "pids"
STRUCK = "struck"

Membership = tuple[int, int]


class Entry(StrEnum):
    """Kinds of lines."""

    JOINING = "joining"
    BEGINS = "begins"
    STEP = "step"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a diary."""

    entry: Entry
    time: float
    rank: int
    pid: int
    membership: Membership
    step: int = 0
    loss: str = ""
    """The exact float, as hex."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """That a strike has happened."""

    time: float
    membership: Membership
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Diary:
    """All lines of all ranks of a cell, by time."""

    lines: tuple[Line, ...]

    @classmethod
    def read(cls, folder: Path) -> Diary:
        """The diaries in the folder of a cell."""
        lines = [
            _line(text)
            for path in (folder / DIARIES).iterdir()
            for text in path.read_text().splitlines()
        ]
        return cls(lines=tuple(sorted(lines, key=lambda line: line.time)))

    def pids(self, rank: int) -> list[int]:
        """The processes this rank has been, in order."""
        return list(dict.fromkeys(line.pid for line in self.lines if line.rank == rank))

    def losses(self) -> dict[int, set[str]]:
        """Every loss that any rank had at a step, in any membership."""
        losses: dict[int, set[str]] = {}
        for line in self.lines:
            if line.entry is Entry.STEP:
                losses.setdefault(line.step, set()).add(line.loss)
        return losses

    def steps_lost(self, mark: Mark) -> tuple[int, int] | None:
        """Steps that were finished before the recovery and done again; None without a recovery.

        Two counts: of steps that every rank had finished, and of steps that any rank had; who had
        finished one more than the others may be the one that was lost.
        """
        recovery = self.recovery(mark)
        if recovery is None:
            return None
        begun = min(line.membership for line in self.lines if self._recovers(line, mark))
        finished: dict[int, int] = {}
        for line in self._steps():
            if line.membership < begun:
                finished[line.rank] = max(line.step, finished.get(line.rank, 0))
        reached = [finished.get(rank, 0) for rank in {line.rank for line in self.lines}]
        return max(0, min(reached) - recovery[0]), max(0, max(reached) - recovery[0])

    def stale_steps(self) -> list[Line]:
        """Steps that ranks of a membership trained after a newer one had begun to.

        A rank that was stopped between the last exchange of a step and its bookkeeping writes the
        step down when it wakes up. Its gang had trained that step: a peer had finished it, which
        takes what every rank gives. Only a step beyond those is trained by who was replaced.
        """
        begun: dict[Membership, float] = {}
        for line in self.lines:
            if line.entry is Entry.BEGINS:
                begun.setdefault(line.membership, line.time)
        stale: list[Line] = []
        trained: dict[Membership, int] = {}
        for line in self._steps():
            is_late = any(line.membership < newer and line.time > at for newer, at in begun.items())
            if not is_late:
                trained[line.membership] = max(line.step, trained.get(line.membership, 0))
            elif line.step > trained.get(line.membership, 0):
                stale.append(line)
        return stale

    def recovery(self, mark: Mark) -> tuple[int, float] | None:
        """(step it went on from, when a step was finished again): the first that came to a step."""
        begun: dict[Membership, int] = {}
        for line in self.lines:
            if line.membership <= mark.membership or line.time < mark.time:
                continue
            if line.entry is Entry.BEGINS:
                begun[line.membership] = line.step
            # the last checkpoint is the end of the work: where nothing is left to be done,
            # being done is what counts
            elif line.entry in (Entry.STEP, Entry.DONE) and line.membership in begun:
                return begun[line.membership], line.time
        return None

    def _recovers(self, line: Line, mark: Mark) -> bool:
        return line.entry is Entry.BEGINS and line.membership > mark.membership

    def _steps(self) -> list[Line]:
        return [line for line in self.lines if line.entry is Entry.STEP]


def read_mark(folder: Path, name: str) -> Mark | None:
    """The strike's marker, if it has happened."""
    try:
        raw = json.loads((folder / STRUCK / name).read_text())
    except FileNotFoundError:
        return None
    return Mark(time=raw["time"], membership=tuple(raw["membership"]), step=raw["step"])


def _line(text: str) -> Line:
    raw = json.loads(text)
    return Line(**{**raw, "entry": Entry(raw["entry"]), "membership": tuple(raw["membership"])})
