"""Run random lives of small clusters: `make soak MINUTES=30`.

Prints the number of lives, and each life that went wrong: its seed, its events, and a capture of
its last cycle for `drumline replay`. A life that crashes does not stop the run.
`python -m tests.property.soak --seed N` runs one life again.
"""

from __future__ import annotations

import argparse
import multiprocessing.pool
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from drumline_scheduler.capture import Capture, encode
from tests.property.scheduling_lifetime import Life, LifeError

EVENTS = 30
AT_ONCE = 50
REPORT_EVERY = 5000
PROCESSES = 2
CAPTURES = Path("build/soak")


def main(arguments: list[str] | None = None) -> int:
    """Run lives until the time is over, or a number of lives; return 1 if one went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.property.soak")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (default: 30)")
    parser.add_argument("--lives", type=int, help="how many lives, instead of minutes")
    parser.add_argument("--first", type=int, help="first seed (default: the time)")
    parser.add_argument("--seed", type=int, help="run this life only")
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        problem = problem_of(chosen.seed)
        print(problem or f"life {chosen.seed} is right")
        return 1 if problem else 0
    first = time.time_ns() // 1_000_000 if chosen.first is None else chosen.first
    end = time.monotonic() + 60 * chosen.minutes
    lived, wrong = 0, 0
    print(f"seeds from {first}", flush=True)
    with multiprocessing.Pool(PROCESSES) as pool:
        for problems in _batches(pool, first=first, lives=chosen.lives, end=end):
            for problem in filter(None, problems):
                wrong += 1
                print(problem, flush=True)
            lived += len(problems)
            if lived % REPORT_EVERY < AT_ONCE:
                print(f"{lived} lives so far, {wrong} went wrong", flush=True)
    print(f"{lived} lives of up to {EVENTS} events, {wrong} went wrong")
    return 1 if wrong else 0


def _batches(
    pool: multiprocessing.pool.Pool, *, first: int, lives: int | None, end: float
) -> Iterator[list[str]]:
    """Yield the problems of lives, batch by batch, in the order of their seeds."""
    begin = first
    while begin < first + lives if lives is not None else time.monotonic() < end:
        stop = begin + AT_ONCE if lives is None else min(begin + AT_ONCE, first + lives)
        yield pool.map(problem_of, range(begin, stop), chunksize=5)
        begin = stop


def problem_of(seed: int, *, captures: Path = CAPTURES) -> str:
    """Run a life. Return what went wrong, or an empty string.

    Args:
        seed: seed of the life.
        captures: folder for a capture of the last cycle of a life that went wrong.
    """
    life = Life(seed)
    try:
        life.live(EVENTS)
    except LifeError as error:
        problem = str(error)
    except Exception:  # noqa: BLE001 - a crash is a finding like any other
        problem = f"life {seed}, {', '.join(life.log)}: crashed\n{traceback.format_exc()}"
    else:
        return ""
    return f"{problem}\n  capture: {_written(life, folder=captures)}"


def _written(life: Life, *, folder: Path) -> Path | str:
    """Write the last cycle of a life. Return the file, or why there is none."""
    if life.asked is None:
        return "there was no cycle"
    capture = Capture(
        snapshot=life.asked.snapshot,
        pending=life.asked.pending,
        policy=life.asked.policy,
        now=life.asked.now,
        decisions=life.decided,
    )
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"life-{life.seed}.json"
    file.write_bytes(encode(capture))
    return file


if __name__ == "__main__":
    sys.exit(main())
