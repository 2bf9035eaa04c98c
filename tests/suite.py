"""All tests, part by part, as CI and `make test` run them.

Each part is a pytest run of its own with a share of the time budget; the longest tests of each are
printed, so that a part that outgrows its share is seen. The last line adds the parts up.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One pytest run."""

    name: str
    folders: tuple[str, ...]
    budget_minutes: float
    options: tuple[str, ...] = ()
    needs_nodes: bool = False


NOT_EVERY_DAY = tuple(
    f"--deselect=tests/e2e/{name}"
    for name in (
        "test_preemption.py::test_at_the_deadline_the_last_verified_step_counts",
        "test_preemption.py::test_nothing_up_to_the_last_verified_step_is_done_again",
        # a rank that a busy machine keeps from parking in time is rightly replaced
        "test_recovery_of_members.py::test_the_ranks_of_the_other_pod_kept_their_processes",
    )
)
"""Of the end-to-end tests: in `make test-e2e-all`."""
PARTS = (
    Part(
        name="unit",
        folders=("tests/unit", "tests/property"),
        budget_minutes=5,
        options=("--ignore=tests/unit/trainer", "--ignore=tests/unit/agent"),
    ),
    Part(name="integration", folders=("tests/integration",), budget_minutes=6),
    Part(
        name="trainer",
        folders=("tests/unit/trainer", "tests/unit/agent", "tests/gloo", "tests/faults"),
        budget_minutes=5,
    ),
    Part(name="layouts", folders=("tests/layouts",), budget_minutes=4),
    Part(name="matrix", folders=("tests/matrix",), budget_minutes=6),
    Part(
        name="e2e",
        folders=("tests/e2e",),
        budget_minutes=8,
        # what waits longest, in `make test-e2e-all`; mutants are also in trainer and matrix, the
        # deadline in integration
        options=("--ignore=tests/e2e/test_mutants.py", *NOT_EVERY_DAY),
        needs_nodes=True,
    ),
)
LINTS = (
    ("ruff check .", ("ruff", "check", "--quiet", ".")),
    ("ruff format --check .", ("ruff", "format", "--quiet", "--check", ".")),
    ("pyright", ("pyright", "--warnings")),
    ("lint-imports", ("lint-imports", "--no-cache")),
)
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|error|errors|xfailed)")


def main(names: list[str]) -> int:
    """Run the named parts, or everything."""
    known = {part.name: part for part in PARTS}
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no part {unknown[0]!r}; known: {', '.join(known)}")
        return 2
    totals = {"passed": 0, "failed": 0, "skipped": 0}
    started = time.monotonic()
    if not names:
        _lint(totals)
    for part in PARTS:
        if not names or part.name in names:
            _run(part, totals)
    minutes = (time.monotonic() - started) / 60
    print(f"\nall parts took {minutes:.1f} min", flush=True)
    print(f"{totals['passed']} passed, {totals['failed']} failed, {totals['skipped']} skipped")
    return 1 if totals["failed"] or not totals["passed"] else 0


def _lint(totals: dict[str, int]) -> None:
    _title("lint", 1)
    for shown, (tool, *arguments) in LINTS:
        command = [str(ROOT / ".venv" / "bin" / tool), *arguments]
        environment = {**os.environ, "PYTHONPATH": "operator:trainer"}
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
        print(f"{shown}: {'ok' if done.returncode == 0 else 'FAILED'}", flush=True)
        totals["failed" if done.returncode else "passed"] += 1


def _run(part: Part, totals: dict[str, int]) -> None:
    _title(part.name, part.budget_minutes)
    missing = _missing_for_nodes() if part.needs_nodes else None
    if missing is not None:
        print(f"skipped: {missing}")
        totals["skipped"] += 1
        return
    folders = [folder for folder in part.folders if (ROOT / folder).exists()]
    command = [sys.executable, "-m", "pytest", "-q", "--durations=5", "--durations-min=2"]
    command += [*part.options, *folders]
    started = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        print(line, end="", flush=True)
        last = line if _COUNT.search(line) else last
    code = process.wait()
    for count, outcome in _COUNT.findall(last):
        key = {"error": "failed", "errors": "failed", "xfailed": "passed"}.get(outcome, outcome)
        totals[key] += int(count)
    if code != 0 and not re.search(r"failed|error", last):
        totals["failed"] += 1
    minutes = (time.monotonic() - started) / 60
    over = "  (over its budget)" if minutes > part.budget_minutes else ""
    print(f"{part.name}: {minutes:.1f} of {part.budget_minutes:g} min{over}", flush=True)


def _title(name: str, budget_minutes: float) -> None:
    print(f"\n===== {name} (budget {budget_minutes:g} min) =====", flush=True)


def _missing_for_nodes() -> str | None:
    """Why real nodes cannot run here; what apt can install is installed by the cluster tool."""
    if os.geteuid() != 0:
        return "real nodes need root (network and mount namespaces); run `sudo make test-e2e`"
    if shutil.which("containerd") is None and shutil.which("apt-get") is None:
        return "real nodes need containerd, and there is no apt-get to install it with"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
