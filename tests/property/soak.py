"""`make soak MINUTES=30`: random lives of small clusters, with fresh seeds, until time is over.

Prints how many there were, and each that went wrong with its seed and what had happened;
`python -m tests.property.soak --seed N` lives one again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time

from tests.property.scheduling_lifetime import Life, LifeError

EVENTS = 30
AT_ONCE = 50
PROCESSES = 2


def main() -> int:
    """Live until time is over; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.property.soak")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int)
    asked = parser.parse_args()
    if asked.seed is not None:
        Life(asked.seed).live(EVENTS)
        return 0
    first = time.time_ns() // 1_000_000
    end = time.monotonic() + 60 * asked.minutes
    lived, wrong = 0, 0
    print(f"seeds from {first} for {asked.minutes:g} minutes", flush=True)
    with multiprocessing.Pool(PROCESSES) as pool:
        while time.monotonic() < end:
            for problem in pool.map(_problem, range(first, first + AT_ONCE)):
                lived += 1
                if problem:
                    wrong += 1
                    print(problem, flush=True)
            first += AT_ONCE
    print(f"{lived} lives of up to {EVENTS} events, {wrong} went wrong")
    return 1 if wrong else 0


def _problem(seed: int) -> str:
    try:
        Life(seed).live(EVENTS)
    except LifeError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    sys.exit(main())
