"""`make gpu`: run the checks, print a report, write build/bench/gpu.json.

On GPUs all is over after ten minutes: the check that runs then is cut, with all its processes.

Exit codes: 0 all is well, 1 something is not, 2 a package is missing, 3 there is no GPU here, 4
the time was over before all was checked (make itself makes 2 of any of them).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tools.bench.report import FOLDER
from tools.gpu.machine import NEEDED, Machine, look, missing_packages, this_machine
from tools.gpu.outcomes import FAILED, NOT_RUN, PASSED, Outcome, outcome_of

MOST_MINUTES = 10.0
ENDING_SECONDS = 20.0
"""Kept for what is killed to be gone, and for the report."""
SOMETHING_FAILED, MISSING_PACKAGE, NO_GPU, TOO_LATE = 1, 2, 3, 4


def main(arguments: Sequence[str]) -> int:
    """Run the checks that are named, or all."""
    parser = argparse.ArgumentParser(prog="tools.gpu", description=__doc__)
    parser.add_argument("checks", nargs="*", help="names; none: all of them")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument(
        "--minutes", type=float, help=f"when all is over; {MOST_MINUTES:g} on GPUs, else never"
    )
    options = parser.parse_args(arguments)
    if missing := missing_packages():
        print(f"make gpu: this Python has no {', '.join(missing)}; it needs {', '.join(NEEDED)}")
        return MISSING_PACKAGE
    seen = look()
    machine = this_machine(options.device, seen=seen)
    if machine is None:
        why = seen.get("trouble", f"torch {seen.get('torch')} sees none")
        print(f"make gpu: no GPU here ({why}); nothing was checked")
        return NO_GPU
    minutes = options.minutes or (MOST_MINUTES if machine.on_gpu else None)
    outcomes = _run(machine, options.checks, minutes=minutes)
    _write(machine, outcomes)
    kinds = {outcome.outcome for outcome in outcomes}
    if FAILED in kinds:
        return SOMETHING_FAILED
    return 0 if kinds <= {PASSED} else TOO_LATE


def _run(machine: Machine, names: Sequence[str], *, minutes: float | None) -> list[Outcome]:
    from tools.gpu.checks import CHECKS  # noqa: PLC0415 - imports what a machine may lack
    from tools.gpu.deadline import within  # noqa: PLC0415 - the same
    from tools.gpu.runs import Bench  # noqa: PLC0415 - the same

    print(f"{machine.ranks} x {machine.name}, {json.dumps(machine.seen)}", flush=True)
    outcomes: list[Outcome] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="drumline-gpu-") as folder:
        bench = Bench.prepare(machine, Path(folder))
        for name in names or CHECKS:
            check = CHECKS[name]
            left = None
            if minutes is not None:
                left = minutes * 60 - ENDING_SECONDS - (time.monotonic() - began)
            if left is not None and left <= 0:
                words = "the time was over"
                made = Outcome(name=name, summary=check.summary, outcome=NOT_RUN, words=words)
            else:
                made = within(left, name, check, partial(outcome_of, name, check, bench))
            print(made, flush=True)
            outcomes.append(made)
    return outcomes


def _write(machine: Machine, outcomes: Sequence[Outcome]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    name = "gpu" if machine.on_gpu else "gpu-rehearsal"
    whole: dict[str, Any] = {
        "device": machine.device,
        "ranks": machine.ranks,
        "machine": machine.seen,
        "checks": [asdict(outcome) for outcome in outcomes],
    }
    (FOLDER / f"{name}.json").write_text(json.dumps(whole, indent=2) + "\n")
    seconds = sum(outcome.seconds for outcome in outcomes)
    for kind, number in Counter(outcome.outcome for outcome in outcomes).items():
        names = ", ".join(each.name for each in outcomes if each.outcome == kind != PASSED)
        print(f"{number} {kind}{names and f': {names}'}")
    print(f"written to build/bench/{name}.json; {seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
