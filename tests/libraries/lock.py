"""`make lock`, second half: requirements.in resolved to requirements.txt, beside requirements.lock.

What the project's own lock has keeps its version and, where it is installed on this platform, is
left out: `.venv` brings it along.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from packaging.markers import Marker

HERE = Path(__file__).parent
LOCK = HERE.parents[1] / "requirements.lock"
RESOLVE = (
    *("uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"),
    *("--generate-hashes", "--no-header", "--no-annotate"),
    *("--constraint", str(LOCK), "--override", "overrides.in", "requirements.in"),
)
_BEGIN = re.compile(r"^(?=[A-Za-z0-9])", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_MARKER = re.compile(r" ; ([^\\\n]+)")


def requirements(text: str) -> Iterator[tuple[str, str]]:
    """The name of each requirement, normalized, and its lines."""
    for lines in _BEGIN.split(text):
        name = _NAME.match(lines)
        if name is not None:
            yield re.sub(r"[._-]+", "-", name[0]).lower(), lines


def brought(text: str) -> set[str]:
    """The names of those that are installed here."""
    marked = ((name, _MARKER.search(lines)) for name, lines in requirements(text))
    return {name for name, marker in marked if marker is None or Marker(marker[1]).evaluate()}


def main() -> None:
    """Resolve again."""
    resolved = subprocess.run(RESOLVE, cwd=HERE, check=True, capture_output=True, text=True).stdout
    there = brought(LOCK.read_text())
    kept = [lines for name, lines in requirements(resolved) if name not in there]
    (HERE / "requirements.txt").write_text("".join(kept))


if __name__ == "__main__":
    main()
