"""`make gpu`: run the checks, print a report, write build/bench/gpu.json.

Exit codes: 0 all is well, 1 something is not, 2 a package is missing, 3 there is no GPU here (make
itself makes 2 of any of them).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench.report import FOLDER
from tests.gpu.machine import NEEDED, Machine, look, missing_packages, this_machine
from tests.gpu.outcomes import FAILED, NOT_RUN, Outcome, outcome_of

MOST_SECONDS = 540.0
"""After so long no other check is begun."""
SOMETHING_FAILED, MISSING_PACKAGE, NO_GPU = 1, 2, 3


def main(arguments: Sequence[str]) -> int:
    """Run the checks that are named, or all."""
    parser = argparse.ArgumentParser(prog="tests.gpu", description=__doc__)
    parser.add_argument("checks", nargs="*", help="names; none: all of them")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
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
    outcomes = _run(machine, options.checks)
    _write(machine, outcomes)
    failed = any(outcome.outcome == FAILED for outcome in outcomes)
    return SOMETHING_FAILED if failed else 0


def _run(machine: Machine, names: Sequence[str]) -> list[Outcome]:
    from tests.gpu.checks import CHECKS  # noqa: PLC0415 - imports what a machine may lack
    from tests.gpu.runs import Bench  # noqa: PLC0415 - the same

    print(f"{machine.ranks} x {machine.name}, {json.dumps(machine.seen)}", flush=True)
    outcomes: list[Outcome] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="drumline-gpu-") as folder:
        bench = Bench.prepare(machine, Path(folder))
        for name in names or CHECKS:
            check = CHECKS[name]
            if machine.on_gpu and time.monotonic() - began > MOST_SECONDS:
                words = f"{MOST_SECONDS:.0f} s were over"
                made = Outcome(name=name, summary=check.summary, outcome=NOT_RUN, words=words)
            else:
                made = outcome_of(name, check, bench)
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
    print(f"written to build/bench/{name}.json; {seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
