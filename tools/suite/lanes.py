"""Runs parts side by side and prints what each wrote, in the order of the table.

The dots of pytest are left out: its closing line counts them, and the log of a run on a server may
keep only so much.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from tools.suite.parts import BINARIES_GROUP, Part, obstacle
from tools.suite.results import Result, result_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "suite"
LANES = 2
LOOK_SECONDS = 0.2
PROGRESS_SECONDS = 15
"""On a terminal; four times as long where nobody looks."""
_PERCENT = re.compile(r"\[ *(\d+)%\]")
_DOTS = re.compile(r"^[.FEsxX]+ *\[ *\d+%\]\n", re.MULTILINE)


def stolen_seconds() -> float:
    """How long this virtual machine's processors waited for its host; no test is slow for that."""
    try:
        steal = int(Path("/proc/stat").read_text().split(maxsplit=9)[8])
    except (OSError, IndexError):
        return 0.0  # not Linux
    return steal / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)


@dataclass(kw_only=True)
class Running:
    """One part that runs."""

    part: Part
    process: subprocess.Popen[bytes]
    output: BinaryIO
    started: float = field(default_factory=time.monotonic)
    stolen: float = field(default_factory=stolen_seconds)

    @classmethod
    def begin(cls, part: Part) -> Running:
        """Start it; its output goes to its file."""
        print(f"started {part.title}", flush=True)
        results_file(part).unlink(missing_ok=True)
        output = log_file(part).open("wb")
        process = subprocess.Popen(
            part.arguments(results=str(results_file(part))),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": "operator:trainer", **part.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        return cls(part=part, process=process, output=output)

    @property
    def progress(self) -> str:
        """How far it is, as far as its output says."""
        percents = _PERCENT.findall(log_file(self.part).read_text(errors="replace"))
        return f"{self.part.name} {percents[-1]} %" if percents else self.part.name

    def result(self) -> Result | None:
        """Return its result, or None while it runs."""
        if self.process.poll() is None:
            return None
        self.output.close()
        stolen = stolen_seconds() - self.stolen
        minutes = (time.monotonic() - self.started - stolen) / 60
        return result_of(
            self.part,
            code=self.process.returncode,
            minutes=minutes,
            results=results_file(self.part),
        )


def run_all(parts: Sequence[Part]) -> list[Result]:
    """Run the parts, each as soon as a lane is free; their results in the order of the table."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    results: dict[str, Result] = {}
    unprinted = deque(parts)
    for result in _ended(parts):
        results[result.part.name] = result
        while unprinted and unprinted[0].name in results:
            _show(results[unprinted.popleft().name])
    return [results[part.name] for part in parts]


def _ended(parts: Sequence[Part]) -> Iterator[Result]:
    """Each part's result when it has ended."""
    waiting, running = deque(parts), list[Running]()
    started = shown = time.monotonic()
    pause_seconds = PROGRESS_SECONDS if sys.stdout.isatty() else 4 * PROGRESS_SECONDS
    try:
        while waiting or running:
            while (part := next_part(waiting, [each.part for each in running])) is not None:
                waiting.remove(part)
                reason = obstacle(part)
                if reason is not None:
                    yield Result(part=part, minutes=0, skipped=1, obstacle=reason)
                    continue
                running.append(Running.begin(part))
            time.sleep(LOOK_SECONDS)
            for each in tuple(running):
                if (result := each.result()) is not None:
                    running.remove(each)
                    yield result
            if running and time.monotonic() - shown > pause_seconds:
                shown = time.monotonic()
                far = ", ".join(each.progress for each in running)
                print(f"[{(shown - started) / 60:5.1f} min] {far}", flush=True)
    finally:
        for left in running:  # this process was interrupted
            left.process.terminate()
        for left in running:
            left.process.wait()


def next_part(waiting: Sequence[Part], running: Sequence[Part]) -> Part | None:
    """Return the part that may start now, or None.

    Two lanes run parts in the order of the table, those of one group at a time. A third lane runs
    the parts that yield (`niceness`) in what the others leave of the processors, and so does a lane
    that has no part of its own. All wait for the part that makes the binaries.
    """
    lanes = [part for part in running if not part.niceness]
    for part in waiting:
        if part.niceness:
            continue
        if len(lanes) < LANES and all(each.group == part.group for each in lanes):
            return part
        break  # no part overtakes another one of these lanes
    if any(part.group == BINARIES_GROUP for part in (*waiting, *running)):
        return None
    if len(running) > LANES:
        return None
    return next((part for part in waiting if part.niceness), None)


def _show(result: Result) -> None:
    print(f"\n===== {result.part.title} =====", flush=True)
    if not result.obstacle:
        print(_DOTS.sub("", log_file(result.part).read_text(errors="replace")), end="")
    print(result.summary, flush=True)


def log_file(part: Part) -> Path:
    """What the part writes to its standard output and error."""
    return FOLDER / f"{part.name}.log"


def results_file(part: Part) -> Path:
    """What pytest writes about each test."""
    return FOLDER / f"{part.name}.xml"
