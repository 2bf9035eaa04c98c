"""`make test` and `make test-slice`: every part, or the parts that are named.

python -m tools.suite               `make test`
python -m tools.suite unit layouts  these two parts
python -m tools.suite --slice       a seeded share of the tests that are not in `make test`
python -m tools.suite --extended    all tests that are not in `make test`
"""

from __future__ import annotations

import argparse
import heapq
import signal
import sys
import time
from collections.abc import Sequence
from itertools import chain

from tools.cluster.binaries import MODULES, Binary, build_estimate_seconds, missing
from tools.suite.lanes import FOLDER, run_all
from tools.suite.parts import BINARIES, chosen
from tools.suite.results import Result
from tools.suite.selection import ESSENTIAL, EXTENDED, SLICE

SLOWEST = 10


def main(arguments: Sequence[str]) -> int:
    """Run parts; return 1 if a test or a check failed."""
    options = _options(arguments)
    try:
        parts = chosen(options.parts, choice=options.choice)
    except LookupError as error:
        print(error)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    announce(missing(set(BINARIES) - set(MODULES)))
    started = time.monotonic()
    results = run_all(parts)
    report(results, minutes=(time.monotonic() - started) / 60)
    passed, failed, skipped = totals(results)
    # .ci/run adds the counts of its runs up
    (FOLDER / f"{options.choice}.counts").write_text(f"{passed} {failed} {skipped}\n")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


def announce(absent: Sequence[Binary]) -> None:
    """Print which programs have to be made first, and about how long that takes."""
    if absent:
        minutes = max(1, round(build_estimate_seconds(absent) / 60))
        names = ", ".join(binary.name for binary in absent)
        print(f"once: download or build {names}: up to {minutes} min on two idle cores", flush=True)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.suite",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", help="names of parts (default: all)")
    which = parser.add_mutually_exclusive_group()
    for choice in (SLICE, EXTENDED):
        which.add_argument(f"--{choice}", dest="choice", action="store_const", const=choice)
    parser.set_defaults(choice=ESSENTIAL)
    return parser.parse_args(arguments)


def report(results: Sequence[Result], *, minutes: float) -> None:
    """Print the slowest tests, each part beside its budget, and at the end what failed."""
    durations = chain.from_iterable(result.durations for result in results)
    print(f"\n===== the {SLOWEST} slowest tests =====")
    for duration in heapq.nlargest(SLOWEST, durations, key=lambda each: each.seconds):
        print(f"{duration.seconds:6.1f} s  {duration.test[:150]}")
    print("\n===== parts =====")
    for result in results:
        print(result.summary)
    for result in results:
        if result.over_budget:
            print(f"warning: {result.part.name} is over its budget; slow machines do not fail")
    print(f"all parts took {minutes:.1f} min", flush=True)
    for result in results:
        for failure in result.failures or (result.part.name,) * bool(result.failed):
            print(f"FAILED {failure}")


def totals(results: Sequence[Result]) -> tuple[int, int, int]:
    """Passed, failed, skipped."""
    return (
        sum(result.passed for result in results),
        sum(result.failed for result in results),
        sum(result.skipped for result in results),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
