"""Check style, types, imports, prose and links; the exit code is the number of failures.

`python -m tools.lint [style] [types]`
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
STYLE = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("lint-imports", "--no-cache"),
    ("python", "-m", "tools.prose"),
    ("zensical", "build", "--strict", "--clean"),
)
TYPES = (("pyright", "--warnings"),)
"""Takes minutes of processor time: `make test` leaves it to `make test-slice`."""
KINDS = {"style": STYLE, "types": TYPES}


def main(kinds: Sequence[str]) -> int:
    """Run the checks of these kinds, without one all."""
    checks = (check for kind in kinds or KINDS for check in KINDS[kind])
    return sum(not passes(*check) for check in checks)


def passes(tool: str, *arguments: str) -> bool:
    """Run a tool of the virtual environment; print its output where it fails, and a verdict."""
    environment = {**os.environ, "PYTHONPATH": "operator:trainer"}
    command = [str(ROOT / ".venv" / "bin" / tool), *arguments]
    started = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stdout, done.stderr, sep="")
    verdict = "FAILED" if done.returncode else "ok"
    shown = " ".join(arguments[:6]) + (" ..." if len(arguments) > 6 else "")
    print(f"{tool} {shown}: {verdict} ({time.monotonic() - started:.0f} s)", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
