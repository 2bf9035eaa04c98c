"""`make test-all WHAT=libraries`: adapters, files and fine-tuning beside the libraries themselves.

ARGS=steps measures a step beside their trainers' instead.

They are no part of `.venv`: an environment of their own, cached by the digest of what is in it, has
the few packages of requirements.txt and sees those of `.venv` through a path file.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
REQUIREMENTS = HERE / "requirements.txt"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "drumline"


def environment() -> Path:
    """The interpreter of the environment, which is made where it does not exist yet."""
    packages = sysconfig.get_path("purelib")
    digest = hashlib.sha256(f"{REQUIREMENTS.read_text()}{packages}".encode()).hexdigest()[:12]
    folder = CACHE / f"libraries-{digest}"
    python = folder / "bin" / "python"
    complete = folder / "complete"
    if not complete.exists():
        run("uv", "venv", "--quiet", "--clear", "--python", sys.executable, str(folder))
        run(
            *("uv", "pip", "install", "--quiet", "--python", str(python), "--no-deps"),
            *("--require-hashes", "-r", str(REQUIREMENTS)),
        )
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "drumline.pth").write_text(packages)
        complete.touch()
    return python


def run(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


def main(arguments: Sequence[str]) -> int:
    # their own deprecations are no faults of ours
    command = ("-m", "pytest", "-q", "-W", "ignore", str(HERE), *arguments)
    if [*arguments] == ["steps"]:
        command = ("-W", "ignore", "-m", "tests.libraries.step_times")
    return subprocess.run([environment(), *command], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
