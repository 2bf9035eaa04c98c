"""The loss of every step as JSON lines, written by rank 0; null where it is not finite.

A resumed run appends; of two lines of a step the later counts. A last line that a killed process
left half written is ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

LOSSES_FILE = "metrics.jsonl"


def append_losses(path: Path, losses: Mapping[int, float]) -> None:
    """Append a line per finished step, in one write."""
    with path.open("ab") as file:
        if file.tell() and not _ends_with_newline(path):
            file.write(b"\n")
        file.writelines(
            json.dumps({"step": step, "loss": loss if math.isfinite(loss) else None}).encode()
            + b"\n"
            for step, loss in losses.items()
        )


def read_losses(path: Path) -> dict[int, float | None]:
    """Return the losses by step number."""
    losses: dict[int, float | None] = {}
    for line in path.read_bytes().splitlines():
        try:
            entry = json.loads(line)
            losses[entry["step"]] = entry["loss"]
        except (ValueError, KeyError, TypeError):
            continue
    return dict(sorted(losses.items()))


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
